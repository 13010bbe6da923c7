/* SPDX-License-Identifier: Apache-2.0 */
/* ledger_formula.h: compares what the ledger of collectives counted with what a step should receive
 * by the formulas of trainer/parallel/layouts.md. */
#ifndef TESSERA_TESTS_PARALLEL_LEDGER_FORMULA_H
#define TESSERA_TESTS_PARALLEL_LEDGER_FORMULA_H

#include "trainer/run/step.h"

/* Checks the last step of a run that slots_watch has watched. ST_BAD_INPUT names the collective
 * that differs. */
WARN_UNUSED status ledger_formula_check(const session *run, const step_report *last,
                                        const comm_ledger *ledger);

#endif
