/* print_leases.h: the built-in leases by whose rows two builds are compared (row_prints.h). */
#ifndef TESSERA_PREPD_WORKER_PRINT_LEASES_H
#define TESSERA_PREPD_WORKER_PRINT_LEASES_H

#include "prepd/worker/print_work.h"

/* Does all leases of one fingerprint of rows, which then is the value of work->hash. */
WARN_UNUSED status print_leases_do(print_work *work, print_kind kind);

#endif
