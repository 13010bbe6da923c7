/* SPDX-License-Identifier: Apache-2.0 */
/* real_receiver.h: the consumer's side of schedules with real rows: every row goes through
 * proto/row/row_order.h and codec_decode, which applies the tag, as proto/session/client.c does it. */
#ifndef TESSERA_TESTS_SIM_PREPD_REAL_RECEIVER_H
#define TESSERA_TESTS_SIM_PREPD_REAL_RECEIVER_H

#include "tests/sim/prepd/sim.h"
#include "tests/sim/prepd/sim_row.h"

/* Makes what real rows are written and read with, if this schedule has any; frees it. */
void real_rows_begin(simulation *sim);
void real_rows_done(simulation *sim);

/* A rank is welcomed. */
void real_rows_welcome(simulation *sim, int rank, const json_value *said);
/* A row has come. *why: why the receiver refuses it, until the next failure; NULL if it takes it,
 * and then *out is what it holds. The maker of a row that is refused must be a liar, and is named.
 * False if something is broken, with nothing in *out. The caller calls sim_row_done otherwise. */
bool real_row_read(simulation *sim, int rank, const wire_msg *message, const frame *head,
                   sim_row *out, const char **why);

#endif
