/* call_record.h: what a rank's ledger of collectives counted, beside the calls that NCCL's shim has
 * run.
 */
#ifndef TESSERA_TESTS_NCCL_CALL_RECORD_H
#define TESSERA_TESTS_NCCL_CALL_RECORD_H

#include "trainer/parallel/comm_ledger.h"

/* Reads PREFIX.rank, PREFIX from TESSERA_NCCL_RECORD; without it nothing is asked. Everything that
 * is in the ledger must have run. Calls and bytes of each kind must be the same; an exchange is
 * messages there. ST_BAD_INPUT names the kind. */
WARN_UNUSED status record_check(const comm_ledger *l, int rank);

#endif
