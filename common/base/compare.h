/* compare.h: comparisons for qsort and bsearch of plain values. What sorts a struct of its own
 * keeps its comparison beside the struct. */
#ifndef TESSERA_COMMON_BASE_COMPARE_H
#define TESSERA_COMMON_BASE_COMPARE_H

#include <stdint.h>
#include <string.h>

/* Items are int64_t, least first. */
static inline int compare_ints(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Items are double and no NaN, least first. */
static inline int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Items are const char *, by bytes. */
static inline int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#endif
