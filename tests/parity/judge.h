/* SPDX-License-Identifier: Apache-2.0 */
/* judge.h: whether numbers are those that an order of roundings gives. The root mean square of the
 * errors may be at most 1.1 times the order's, and every element may be off by 2.5 times what the
 * order is off at most: of the few elements with the largest errors (keys that many branches have
 * in common, products in the highest binade) another sample of the same order was off by up to
 * twice as much. slack is what arithmetic in float may add to an element. */
#ifndef TESSERA_TESTS_PARITY_JUDGE_H
#define TESSERA_TESTS_PARITY_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct verdict {
    int64_t at;         /* the first element that is off by more than `limit`; -1: none */
    double limit;       /* of that element */
    double ours, order; /* root mean squares of the errors */
    bool told;          /* they are of so many elements that they say something */
    bool alike;         /* ours is at most 1.1 times the order's */
} verdict;

/* Whether got is want or at most `limit` off; NaN is wanted where want is NaN. */
bool judge_value(double got, double want, double limit);
/* The root mean squares alone. */
verdict judge_errors(int64_t n, const double *got, const double *want, const double *order,
                     double slack);
/* bf16 numbers. twice: the order may round more than once, and an element may be 2.5 times as far
 * off as the order's worst one; otherwise it may be off by half a unit of its last place. */
verdict judge_bf16(int64_t n, const double *got, const double *want, const double *order,
                   bool twice, double slack);
bool verdict_holds(const verdict *found);

#endif
