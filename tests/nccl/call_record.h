/* call_record.h: compares what a rank's ledger of collectives counted with the calls that NCCL's
 * shim has run. */
#ifndef TESSERA_TESTS_NCCL_CALL_RECORD_H
#define TESSERA_TESTS_NCCL_CALL_RECORD_H

#include "trainer/parallel/comm_ledger.h"

/* Reads the record PREFIX.rank, with PREFIX from TESSERA_NCCL_RECORD; without that variable it does
 * nothing. All calls in the ledger must have run by now. Calls and bytes of each kind must be the
 * same; of an exchange, which the shim sees as messages, only the bytes. ST_BAD_INPUT names the
 * kind. */
WARN_UNUSED status record_check(const comm_ledger *l, int rank);

#endif
