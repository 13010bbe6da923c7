/* compare.h: comparison functions for qsort and bsearch of plain values. A file that sorts structs
 * has its own comparison beside the struct. */
#ifndef TESSERA_COMMON_BASE_COMPARE_H
#define TESSERA_COMMON_BASE_COMPARE_H

#include <stdint.h>
#include <string.h>

/* Items are int64_t; ascending. */
static inline int compare_ints(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Items are double, none of them NaN; ascending. */
static inline int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Items are const char *; in the order of strcmp. */
static inline int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#endif
