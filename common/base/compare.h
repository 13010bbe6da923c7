/* SPDX-License-Identifier: Apache-2.0 */
/* compare.h: the smaller and the larger of two numbers, and comparison functions for qsort and
 * bsearch of plain values. A file that sorts structs
 * has its own comparison beside the struct. */
#ifndef TESSERA_COMMON_BASE_COMPARE_H
#define TESSERA_COMMON_BASE_COMPARE_H

#include <stdint.h>
#include <string.h>

static inline int64_t min_i64(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static inline int64_t max_i64(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

/* Items are int64_t; ascending. */
static inline int compare_ints(const void *left, const void *right)
{
    const int64_t first = *(const int64_t *)left, second = *(const int64_t *)right;
    return (first > second) - (first < second);
}

/* Items are double, none of them NaN; ascending. */
static inline int compare_reals(const void *left, const void *right)
{
    const double first = *(const double *)left, second = *(const double *)right;
    return (first > second) - (first < second);
}

/* Items are const char *; in the order of strcmp. */
static inline int compare_texts(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

#endif
