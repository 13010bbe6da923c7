/* SPDX-License-Identifier: Apache-2.0 */
/* errors.c: collects what the comparisons with an order of roundings found, op by op (parity.h). */
#include <stdio.h>

#include "tests/parity/parity.h"

/* The ops for which transformers' bf16 model (modeling_qwen3_vl_moe.py) determines an order of
 * roundings; each is compared with it. For the other ops the order is one rounding of the exact
 * result, which no bf16 array can beat. */
static const char *const in_table[] = {
    "gemm",      "grouped_gemm",  "layernorm_fwd", "rope_apply",    "rows_weighted", "rmsnorm_fwd",
    "rope_text", "norm_rope_fwd", "attention_fwd", "attention_bwd", "route_fwd",     "swiglu_fwd",
    "gelu_fwd",  "add",           "rows_scatter",  "patch_input",   "xent",
};
enum { N_IN_TABLE = sizeof in_table / sizeof in_table[0], OPS_MAX = 64 };

typedef struct found {
    const char *op, *name, *what; /* the case with the largest ratio */
    double share, ours, order;
    int64_t comparisons;
} found;

static found list[OPS_MAX];
static int n_found;

static found *found_of(const char *op)
{
    for (int i = 0; i < n_found; i++)
        if (strcmp(list[i].op, op) == 0)
            return &list[i];
    assert_true(n_found < OPS_MAX);
    list[n_found] = (found){.op = op, .share = -1};
    return &list[n_found++];
}

void errors_note(const parity *test, const char *what, double ours, double order)
{
    found *here = found_of(test->op);
    here->comparisons++;
    if (ours / order > here->share)
        *here = (found){test->op, test->name, what, ours / order, ours, order, here->comparisons};
}

bool errors_wanted(const char *op)
{
    for (int i = 0; i < N_IN_TABLE; i++)
        if (strcmp(in_table[i], op) == 0)
            return true;
    return false;
}

int64_t errors_compared(const char *op)
{
    for (int i = 0; i < n_found; i++)
        if (strcmp(list[i].op, op) == 0)
            return list[i].comparisons;
    return 0;
}

void errors_print(void)
{
    if (n_found)
        printf("root mean square error against float64, ours and that of the order of roundings, "
               "for the "
               "worst comparison of each op; the ratio may be at most 1.1:\n");
    for (int i = 0; i < n_found; i++)
        printf("  %-18s %.4f  %.3e %.3e  of %3lld: %s, %s\n", list[i].op, list[i].share,
               list[i].ours, list[i].order, (long long)list[i].comparisons, list[i].name,
               list[i].what);
}
