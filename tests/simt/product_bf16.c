/* SPDX-License-Identifier: Apache-2.0 */
/* product_bf16.c: see product_bf16.h. Letters: a, b the factors of a product; c the product. */
#include "tests/simt/product_bf16.h"

#include <stdint.h>
#include <stdlib.h>

#include "trainer/model/dims/convert.h"
#include "trainer/ops/table.h"

static stream *cpu;

void product_bf16_by(stream *queue)
{
    cpu = queue;
}

/* *out stays NULL for no array. */
static status widen_array(const void *bf16, int64_t count, float **out)
{
    double value;
    if (!bf16)
        return ST_OK;
    *out = malloc((size_t)(count > 0 ? count : 1) * sizeof **out);
    if (!*out)
        return FAIL(ST_NO_MEMORY, "no memory for a product's arrays");
    for (int64_t i = 0; i < count; i++) {
        convert_to_double(&value, (const uint16_t *)bf16 + i, DT_BF16, 1);
        (*out)[i] = (float)value;
    }
    return ST_OK;
}

static void narrow_array(void *bf16, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double value = from[i];
        convert_from_double((uint16_t *)bf16 + i, DT_BF16, &value, 1);
    }
}

static int64_t cells(int64_t rows, int64_t columns, int64_t stride)
{
    return rows > 0 ? (rows - 1) * stride + columns : 0;
}

status product_bf16(stream *queue, const gemm_args *args)
{
    (void)queue;
    const int64_t na = args->trans_a ? cells(args->k, args->m, args->lda)
                                     : cells(args->m, args->k, args->lda),
                  nb = args->trans_b ? cells(args->n, args->k, args->ldb)
                                     : cells(args->k, args->n, args->ldb),
                  nc = cells(args->m, args->n, args->ldc);
    gemm_args product = *args;
    float *a = NULL, *b = NULL, *bias = NULL, *c = NULL, *residual = NULL;
    status st = ST_OK;
    TRY_OR(done, widen_array(args->a, na, &a));
    TRY_OR(done, widen_array(args->b, nb, &b));
    TRY_OR(done, widen_array(args->bias, args->n, &bias));
    TRY_OR(done, widen_array(args->residual, nc, &residual));
    TRY_OR(done, widen_array(args->c_acc ? NULL : args->c, nc, &c));
    product.a = a;
    product.b = b;
    product.bias = bias;
    product.residual = residual;
    product.c = c ? c : args->c;
    TRY_OR(done, op_gemm(cpu, &product));
    if (c)
        narrow_array(args->c, c, nc);
done:
    free(a);
    free(b);
    free(bias);
    free(residual);
    free(c);
    return st;
}
