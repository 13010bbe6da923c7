/* ledger_formula.h: what a step should receive by the formula of trainer/parallel/README.md, beside
 * what the ledger of collectives counted. */
#ifndef TESSERA_TESTS_PARALLEL_LEDGER_FORMULA_H
#define TESSERA_TESTS_PARALLEL_LEDGER_FORMULA_H

#include "trainer/run/step.h"

/* Of the last step of a run that slots_watch has listened to. ST_BAD_INPUT names the collective. */
WARN_UNUSED status ledger_formula_check(const session *s, const step_report *last,
                                        const comm_ledger *l);

#endif
