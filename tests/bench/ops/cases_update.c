/* SPDX-License-Identifier: Apache-2.0 */
/* cases_update.c: cases of what follows the backward pass: the gradient's norm, the optimiser's
 * update, and the copies and sums by which ranks share a layer's experts. All are limited by memory
 * bandwidth. Letters: n the values of a tensor. */
#include "tests/bench/ops/op_cases.h"

#define TEXT (bench->sizes->dims->text)

static int64_t expert_values(const bench_case *bench)
{
    return TEXT.experts * TEXT.hidden * 2 * TEXT.expert_width;
}

/* One tensor as large as a layer's gate and up weights. */
static optim_list one_tensor(bench_case *bench, bool moments)
{
    int64_t n = expert_values(bench);
    bool copy = moments && bench->queue->dev->backend->act != bench->queue->dev->backend->acc;
    optim_tensor host = {.n = n, .lr_factor = 1.0, .decay = 0.1, .g = bench_acc(bench, n)};
    if (moments) {
        host.p = bench_acc(bench, n);
        host.m = bench_acc(bench, n);
        host.v = bench_acc(bench, n);
        host.p_act = copy ? bench_act(bench, n) : NULL;
    }
    bench->bytes = count_acc_bytes(bench, (moments ? 7.0 : 1.0) * (double)n) +
                   (copy ? count_act_bytes(bench, (double)n) : 0.0);
    return (optim_list){.tensor = bench_upload(bench, &host, sizeof host),
                        .n_tensors = 1,
                        .n_chunks = (n + OPTIM_CHUNK - 1) / OPTIM_CHUNK};
}

static void sum_squares(bench_case *bench)
{
    bench->args.sum_squares =
        (sum_squares_args){.list = one_tensor(bench, false), .total = bench_raw(bench, 8)};
}

static void step_finish(bench_case *bench)
{
    bench->args.step_finish = (step_finish_args){.max_norm = 1.0,
                                                 .sum_squares = bench_raw(bench, 8),
                                                 .weight = bench_raw(bench, 8),
                                                 .step = bench_raw(bench, sizeof(step_scalars))};
    bench->bytes = sizeof(step_scalars);
}

enum {
    UNIT_GROUPS = 5, /* as many as the parameters of a model have (model/params/params.h) */
    UNITS = 82       /* of the 30B (model/params/unit_order.h) */
};

static void unit_finish(bench_case *bench)
{
    bench->args.unit_finish =
        (unit_finish_args){.groups = UNIT_GROUPS,
                           .units = UNITS,
                           .first = true,
                           .last = true,
                           .max_norm = 1.0,
                           .squares = bench_raw(bench, UNIT_GROUPS * sizeof(double)),
                           .loss = bench_raw(bench, 8),
                           .weight = bench_raw(bench, 8),
                           .after_group = bench_raw(bench, UNIT_GROUPS * sizeof(double)),
                           .unit_squares = bench_raw(bench, UNITS * sizeof(double)),
                           .share = bench_raw(bench, UNITS * sizeof(double)),
                           .step = bench_raw(bench, sizeof(step_scalars))};
    bench->bytes = sizeof(step_scalars);
}

static const step_scalars *upload_scalars(bench_case *bench)
{
    const step_scalars host = {.lr = 1e-5,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .bias1 = 0.1,
                               .bias2 = 0.05,
                               .grad_scale = 1.0};
    return bench_upload(bench, &host, sizeof host);
}

static void adamw(bench_case *bench)
{
    bench->args.adamw =
        (adamw_args){.list = one_tensor(bench, true), .step = upload_scalars(bench)};
}

/* A tensor of that size with moments in 8 bits and a master weight in act that is rounded at
 * random. */
static void adamw_coded(bench_case *bench)
{
    const int64_t n = expert_values(bench), blocks = (n + STATE_BLOCK - 1) / STATE_BLOCK;
    optim_tensor host = {.n = n,
                         .lr_factor = 1.0,
                         .decay = 0.1,
                         .p = bench_act(bench, n),
                         .m = bench_raw(bench, n),
                         .v = bench_raw(bench, n),
                         .m_scale = bench_raw(bench, blocks * (int64_t)sizeof(float)),
                         .v_scale = bench_raw(bench, blocks * (int64_t)sizeof(float)),
                         .g = bench_acc(bench, n),
                         .rounding = OPTIM_RANDOM,
                         .random = {.key = {1, 2}, .run = n}};
    bench->args.adamw = (adamw_args){.list = {.tensor = bench_upload(bench, &host, sizeof host),
                                              .n_tensors = 1,
                                              .n_chunks = (n + OPTIM_CHUNK - 1) / OPTIM_CHUNK,
                                              .coded = true},
                                     .step = upload_scalars(bench)};
    bench->bytes = count_acc_bytes(bench, (double)n) + count_act_bytes(bench, 2.0 * (double)n) +
                   4.0 * (double)n + 16.0 * (double)blocks;
}

const bench_row bench_update[] = {
    BENCH_ROW(sum_squares, "a layer's gate up", sum_squares),
    BENCH_ROW(step_finish, "scalars", step_finish),
    BENCH_ROW(unit_finish, "scalars", unit_finish),
    BENCH_ROW(adamw, "a layer's gate up", adamw),
    BENCH_ROW(adamw, "its 8 bits and bf16", adamw_coded),
    {.op_name = NULL},
};
