/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_bounds.h: how large a simulated job may be, and its units of time. */
#ifndef TESSERA_TESTS_SIM_RANKS_BOUNDS_H
#define TESSERA_TESTS_SIM_RANKS_BOUNDS_H

enum {
    RANKS_MOST = 48,
    STEPS_MOST = 12,
    WIRES_MOST = 512,
    FAULTS_MOST = 3,
    FOLDERS_MOST = 48,
    CALLS = 3
};
#define MS     INT64_C(1000000)
#define SECOND (INT64_C(1000) * MS)

#endif
