/* SPDX-License-Identifier: Apache-2.0 */
/* call_record.h: compares what a rank's ledger of collectives counted with the calls that the
 * stand-in for NCCL has run. */
#ifndef TESSERA_TESTS_NCCL_CALL_RECORD_H
#define TESSERA_TESTS_NCCL_CALL_RECORD_H

#include "trainer/parallel/comm/comm_ledger.h"

/* Reads the record PREFIX.rank, with PREFIX from TESSERA_NCCL_RECORD; without that variable it does
 * nothing. All calls in the ledger must have run by now. Calls and bytes of each kind must be
 * equal; of an exchange, which the stand-in sees as messages, only the bytes. ST_BAD_INPUT names
 * the kind that differs. */
WARN_UNUSED status record_check(const comm_ledger *ledger, int rank);

#endif
