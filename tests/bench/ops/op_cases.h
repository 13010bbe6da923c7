/* SPDX-License-Identifier: Apache-2.0 */
/* op_cases.h: cases of all ops beside the products and attention that trainer/bench/cases.h has. Those of
 * bench_layers, bench_rows and bench_update are limited by memory bandwidth. */
#ifndef TESSERA_TESTS_BENCH_OPS_OP_CASES_H
#define TESSERA_TESTS_BENCH_OPS_OP_CASES_H

#include "trainer/bench/cases.h"

extern const bench_row bench_more_products[], bench_layers[], bench_rows[], bench_update[],
    bench_routing[];

#endif
