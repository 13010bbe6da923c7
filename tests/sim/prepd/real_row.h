/* SPDX-License-Identifier: Apache-2.0 */
/* real_row.h: true ROW messages, as a worker sends them, in the schedules that carry them (one in a
 * hundred, sim_rules.real_rows): header, block and images, written by proto/message/codec.h from all that
 * the lease says. What a simulated row tells its consumer beside, when its files were read and
 * whether its worker lied, stands in the references of the block, which no digest covers and the
 * tag replaces. */
#ifndef TESSERA_TESTS_SIM_PREPD_REAL_ROW_H
#define TESSERA_TESTS_SIM_PREPD_REAL_ROW_H

#include "proto/message/codec.h"
#include "tests/sim/prepd/sim_row.h"

/* Makes the message of a row. It is built in memory, which is emptied first. */
wire_msg *real_row_make(codec *coder, arena *memory, const sim_data *data, const json_value *lease,
                        row_lie lie, int64_t began_ns);

/* Whether a row that was made and the one in parts [at, at + n_parts) of another message have the
 * same content, which is computed from both. */
bool real_row_same(codec *coder, const wire_msg *made, const wire_msg *other, size_t at,
                   size_t n_parts);

/* --- real_lies.c --- */
/* Changes the row as a liar does: ROW_LIES_IDS in something that its tag tells or that anybody can
 * check, ROW_LIES_CONTENT in something that only another worker can tell. `luck` chooses what; the
 * row stays one that row_check lets through. False if it has nothing of the kind to change. */
bool real_lie(row *packed, row_lie lie, uint64_t luck);
/* Turns a bit of a message over, in a picture if it has any, else in its block. */
void real_damage(wire_msg *message, uint64_t luck);

#endif
