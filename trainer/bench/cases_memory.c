/* cases_memory.c: cases of ops that are limited by memory bandwidth: norms, rotary embeddings,
 * activations, rows, head, optimiser. Letters: T, S the tokens and the
 * patches of the micro-batch; n the elements of a row; d the width of a head; x, y, w an op's
 * input, output and weight. */
#include <stdlib.h>

#include "trainer/bench/cases.h"

enum { LOGIT_ROWS = 1024 };
#define TEXT (bench->sizes->dims->text)
#define EYE  (bench->sizes->dims->vision)
#define T    (bench->sizes->tokens)
#define S    (bench->sizes->patches)

static double count_act_bytes(const bench_case *bench, double elements)
{
    return bench_act_bytes(bench) * elements;
}

static double count_acc_bytes(const bench_case *bench, double n)
{
    return bench_acc_bytes(bench) * n;
}

static void add_residual(bench_case *bench)
{
    int64_t n = T * TEXT.hidden;
    bench->args.add = (add_args){
        .n = n, .a = bench_act(bench, n), .b = bench_act(bench, n), .y = bench_act(bench, n)};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)n);
}

/* The scaling of an adapter's result. It scales by 1 here, so that repeated calls stay finite. */
static void scale(bench_case *bench)
{
    int64_t n = T * TEXT.hidden;
    bench->args.scale = (scale_args){.n = n, .factor = 1.0, .y = bench_act(bench, n)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)n);
}

/* A layer's experts' first matrices, which a frozen base in 4 or 8 bits is expanded to. */
static void expand_experts(bench_case *bench, weight_form form)
{
    const int64_t rows = TEXT.experts * TEXT.hidden, n = 2 * TEXT.expert_width;
    const int64_t bytes = rows * weight_row_blocks(n) * weight_block_bytes(form);
    bench->args.dequantise = (dequantise_args){.form = form,
                                               .rows = rows,
                                               .n = n,
                                               .blocks = bench_raw(bench, bytes),
                                               .y = bench_act(bench, rows * n)};
    bench->bytes = (double)bytes + count_act_bytes(bench, (double)(rows * n));
}

static void dequantise_nf4(bench_case *bench)
{
    expand_experts(bench, WEIGHT_NF4);
}

static void dequantise_int8(bench_case *bench)
{
    expand_experts(bench, WEIGHT_INT8);
}

/* An adapter of rank 16 with lengths, at the queries' matrix. */
enum { DORA_RANK = 16 };

static void dora_norm(bench_case *bench)
{
    const int64_t in = TEXT.hidden, out = TEXT.heads * TEXT.head_dim;
    bench->args.dora_norm = (dora_norm_args){.out = out,
                                             .in = in,
                                             .rank = DORA_RANK,
                                             .scale = 1,
                                             .w = bench_act(bench, out * in),
                                             .a = bench_act(bench, DORA_RANK * in),
                                             .b = bench_act(bench, out * DORA_RANK),
                                             .norm = bench_act(bench, out)};
    bench->bytes = count_act_bytes(bench, (double)(out * in));
}

static void dora_fwd(bench_case *bench)
{
    const int64_t out = TEXT.heads * TEXT.head_dim;
    bench->args.dora_fwd = (dora_fwd_args){.rows = T,
                                           .n = out,
                                           .y_stride = out,
                                           .z = bench_act(bench, T * out),
                                           .m = bench_act(bench, out),
                                           .norm = bench_act(bench, out),
                                           .y = bench_act(bench, T * out)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(T * out));
}

static void dora_bwd(bench_case *bench)
{
    const int64_t out = TEXT.heads * TEXT.head_dim;
    bench->args.dora_bwd = (dora_bwd_args){.rows = T,
                                           .n = out,
                                           .dy_stride = out,
                                           .dy = bench_act(bench, T * out),
                                           .z = bench_act(bench, T * out),
                                           .m = bench_act(bench, out),
                                           .norm = bench_act(bench, out),
                                           .dz = bench_act(bench, T * out),
                                           .dm = bench_acc(bench, out)};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)(T * out));
}

static void bias_grad(bench_case *bench)
{
    int64_t rows = S, intermediate = EYE.intermediate;
    bench->args.bias_grad = (bias_grad_args){.rows = rows,
                                             .n = intermediate,
                                             .dy = bench_act(bench, rows * intermediate),
                                             .db = bench_acc(bench, intermediate)};
    bench->bytes = count_act_bytes(bench, (double)(rows * intermediate));
}

static void rmsnorm(bench_case *bench, bool backward, int64_t rows, int64_t hidden)
{
    void *x = bench_act(bench, rows * hidden), *w = bench_act(bench, hidden),
         *rstd = bench_acc(bench, rows);
    void *y = bench_act(bench, rows * hidden);
    if (backward) /* adds the residual's gradient as well */
        bench->args.rmsnorm_bwd = (rmsnorm_bwd_args){.rows = rows,
                                                     .n = hidden,
                                                     .x = x,
                                                     .w = w,
                                                     .rstd = rstd,
                                                     .dy = y,
                                                     .dx = bench_act(bench, rows * hidden),
                                                     .dw = bench_acc(bench, hidden),
                                                     .dx_accumulate = true};
    else
        bench->args.rmsnorm_fwd = (rmsnorm_fwd_args){
            .rows = rows, .n = hidden, .eps = 1e-6, .x = x, .w = w, .y = y, .rstd = rstd};
    bench->bytes = count_act_bytes(bench, (backward ? 4.0 : 2.0) * (double)(rows * hidden)) +
                   count_acc_bytes(bench, (double)rows);
}

static void rmsnorm_hidden(bench_case *bench)
{
    rmsnorm(bench, false, T, TEXT.hidden);
}

static void rmsnorm_hidden_bwd(bench_case *bench)
{
    rmsnorm(bench, true, T, TEXT.hidden);
}

static void norm_rope(bench_case *bench)
{
    int64_t heads = TEXT.heads, head_dim = TEXT.head_dim, n = T * heads * head_dim;
    bench->args.norm_rope_fwd = (norm_rope_fwd_args){.rows = T,
                                                     .heads = heads,
                                                     .head_dim = head_dim,
                                                     .eps = 1e-6,
                                                     .x = bench_act(bench, n),
                                                     .w = bench_act(bench, head_dim),
                                                     .cos = bench_acc(bench, T * head_dim / 2),
                                                     .sin = bench_acc(bench, T * head_dim / 2),
                                                     .y = bench_act(bench, n),
                                                     .rstd = bench_acc(bench, T * heads)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)n) +
                   count_acc_bytes(bench, (double)(T * (head_dim + heads)));
}

static void norm_rope_bwd(bench_case *bench)
{
    int64_t heads = TEXT.heads, head_dim = TEXT.head_dim, n = T * heads * head_dim;
    void *dy = bench_act(bench, n); /* in place, as the model calls it */
    bench->args.norm_rope_bwd = (norm_rope_bwd_args){.rows = T,
                                                     .heads = heads,
                                                     .head_dim = head_dim,
                                                     .x = bench_act(bench, n),
                                                     .w = bench_act(bench, head_dim),
                                                     .cos = bench_acc(bench, T * head_dim / 2),
                                                     .sin = bench_acc(bench, T * head_dim / 2),
                                                     .rstd = bench_acc(bench, T * heads),
                                                     .dy = dy,
                                                     .dx = dy,
                                                     .dw = bench_acc(bench, head_dim)};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)n) +
                   count_acc_bytes(bench, (double)(T * (head_dim + heads)));
}

static void layernorm(bench_case *bench)
{
    int64_t rows = S, hidden = EYE.hidden;
    bench->args.layernorm_fwd = (layernorm_fwd_args){.rows = rows,
                                                     .n = hidden,
                                                     .eps = 1e-6,
                                                     .x = bench_act(bench, rows * hidden),
                                                     .w = bench_act(bench, hidden),
                                                     .b = bench_act(bench, hidden),
                                                     .y = bench_act(bench, rows * hidden),
                                                     .mean = bench_acc(bench, rows),
                                                     .rstd = bench_acc(bench, rows)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(rows * hidden)) +
                   count_acc_bytes(bench, 2.0 * (double)rows);
}

static void layernorm_bwd(bench_case *bench)
{
    int64_t rows = S, hidden = EYE.hidden;
    bench->args.layernorm_bwd = (layernorm_bwd_args){.rows = rows,
                                                     .n = hidden,
                                                     .x = bench_act(bench, rows * hidden),
                                                     .w = bench_act(bench, hidden),
                                                     .mean = bench_acc(bench, rows),
                                                     .rstd = bench_acc(bench, rows),
                                                     .dy = bench_act(bench, rows * hidden),
                                                     .dx = bench_act(bench, rows * hidden),
                                                     .dw = bench_acc(bench, hidden),
                                                     .db = bench_acc(bench, hidden),
                                                     .dx_accumulate = true};
    bench->bytes = count_act_bytes(bench, 4.0 * (double)(rows * hidden)) +
                   count_acc_bytes(bench, 2.0 * (double)rows);
}

static int32_t position(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index % sizes->row);
}

static void rope_text(bench_case *bench)
{
    int64_t half = TEXT.head_dim / 2;
    bench->args.rope_text = (rope_text_args){
        .tokens = T,
        .head_dim = TEXT.head_dim,
        .theta = TEXT.rope_theta,
        .section = {TEXT.mrope_section[0], TEXT.mrope_section[1], TEXT.mrope_section[2]},
        .positions = bench_ints(bench, 3 * T, position),
        .cos = bench_acc(bench, T * half),
        .sin = bench_acc(bench, T * half)};
    bench->bytes = count_acc_bytes(bench, 2.0 * (double)(T * half)) + 12.0 * (double)T;
}

static void rope_vision(bench_case *bench)
{
    int64_t d = dims_vision_head_dim(bench->sizes->dims);
    bench->args.rope_vision = (rope_vision_args){.patches = S,
                                                 .head_dim = d,
                                                 .theta = 10000.0,
                                                 .row_col = bench_ints(bench, 2 * S, position),
                                                 .cos = bench_acc(bench, S * d / 2),
                                                 .sin = bench_acc(bench, S * d / 2)};
    bench->bytes = count_acc_bytes(bench, (double)(S * d)) + 8.0 * (double)S;
}

/* Rotates the q part of packed q, k and v. */
static void rope_apply(bench_case *bench)
{
    int64_t heads = EYE.heads, d = dims_vision_head_dim(bench->sizes->dims), stride = 3 * heads * d;
    bench->args.rope_apply = (rope_apply_args){.rows = S,
                                               .heads = heads,
                                               .head_dim = d,
                                               .x_stride = stride,
                                               .cos = bench_acc(bench, S * d / 2),
                                               .sin = bench_acc(bench, S * d / 2),
                                               .x = bench_act(bench, S * stride)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(S * heads * d)) +
                   count_acc_bytes(bench, (double)(S * d));
}

static void bench_swiglu(bench_case *bench)
{
    int64_t rows = T * TEXT.top_k, expert_width = TEXT.expert_width;
    bench->args.swiglu_fwd = (swiglu_fwd_args){.rows = rows,
                                               .width = expert_width,
                                               .x = bench_act(bench, 2 * rows * expert_width),
                                               .y = bench_act(bench, rows * expert_width)};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)(rows * expert_width));
}

static void swiglu_bwd(bench_case *bench)
{
    int64_t rows = T * TEXT.top_k, expert_width = TEXT.expert_width;
    void *x = bench_act(bench, 2 * rows * expert_width);
    bench->args.swiglu_bwd = (swiglu_bwd_args){.rows = rows,
                                               .width = expert_width,
                                               .x = x,
                                               .dy = bench_act(bench, rows * expert_width),
                                               .dx = x};
    bench->bytes = count_act_bytes(bench, 5.0 * (double)(rows * expert_width));
}

static void bench_gelu(bench_case *bench)
{
    int64_t n = S * EYE.intermediate;
    bench->args.gelu_fwd = (gelu_fwd_args){
        .kind = GELU_TANH, .n = n, .x = bench_act(bench, n), .y = bench_act(bench, n)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)n);
}

static void gelu_bwd(bench_case *bench)
{
    int64_t n = S * EYE.intermediate;
    bench->args.gelu_bwd = (gelu_bwd_args){.kind = GELU_TANH,
                                           .n = n,
                                           .x = bench_act(bench, n),
                                           .dy = bench_act(bench, n),
                                           .dx = bench_act(bench, n)};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)n);
}

static void patch_input(bench_case *bench)
{
    int64_t wide = EYE.patch_bytes;
    bench->args.patch_input = (patch_input_args){
        .patches = S, .pixels = bench_raw(bench, S * wide / 2), .out = bench_act(bench, S * wide)};
    bench->bytes = (double)(S * wide / 2) + count_act_bytes(bench, (double)(S * wide));
}

static int32_t some_token(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index * 7919 % sizes->dims->text.vocab);
}

static int32_t slot_token(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index * 7919 % sizes->tokens);
}

static int32_t own_row(const bench_sizes *sizes, int64_t index)
{
    (void)sizes;
    return (int32_t)index;
}

/* Where each token's slots are if slot i is that of slot_token(i): places [T, K]. */
static int32_t *slot_places(bench_case *bench)
{
    const int64_t k = TEXT.top_k, n = T * k;
    int32_t *places = malloc((size_t)n * sizeof *places), *made = NULL;
    int64_t *used = calloc((size_t)T, sizeof *used);
    if (places && used) {
        for (int64_t i = 0; i < n; i++)
            places[i] = -1;
        for (int64_t i = 0; i < n; i++) {
            const int64_t token = slot_token(bench->sizes, i);
            if (used[token] < k)
                places[token * k + used[token]++] = (int32_t)i;
        }
        made = bench_ints_of(bench, places, n);
    } else if (bench->st == ST_OK) {
        bench->st = FAIL(ST_NO_MEMORY, "no memory for the arguments of an op");
    }
    free(places);
    free(used);
    return made;
}

static void gather_slots(bench_case *bench)
{
    int64_t n = T * TEXT.top_k, width = TEXT.hidden;
    bench->args.rows_gather = (rows_gather_args){.n = n,
                                                 .width = width,
                                                 .index = bench_ints(bench, n, slot_token),
                                                 .x = bench_act(bench, T * width),
                                                 .y = bench_act(bench, n * width),
                                                 .copies = TEXT.top_k,
                                                 .places = slot_places(bench)};
    bench->bytes = count_act_bytes(bench, (double)((n + T) * width)) + 8.0 * (double)n;
}

static void scatter_embedding(bench_case *bench)
{
    int64_t width = TEXT.hidden;
    bench->args.rows_scatter = (rows_scatter_args){.n = T,
                                                   .width = width,
                                                   .y_rows = TEXT.vocab,
                                                   .index = bench_ints(bench, T, some_token),
                                                   .x = bench_act(bench, T * width),
                                                   .y = bench_acc(bench, TEXT.vocab * width),
                                                   .y_acc = true};
    bench->bytes = count_act_bytes(bench, (double)(T * width)) +
                   count_acc_bytes(bench, 2.0 * (double)(T * width));
}

static void scatter_visual(bench_case *bench)
{
    int64_t n = S / 4 < T ? S / 4 : T, width = TEXT.hidden;
    bench->args.rows_scatter = (rows_scatter_args){.n = n,
                                                   .width = width,
                                                   .y_rows = T,
                                                   .index = bench_ints(bench, n, own_row),
                                                   .x = bench_act(bench, n * width),
                                                   .y = bench_act(bench, T * width),
                                                   .distinct = true};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)(n * width));
}

static int32_t table_row(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index / 4 * 13 % sizes->dims->vision.positions);
}

static void weighted(bench_case *bench)
{
    int64_t width = EYE.hidden;
    bench->args.rows_weighted =
        (rows_weighted_args){.n = S,
                             .width = width,
                             .table_rows = EYE.positions,
                             .index = bench_ints(bench, 4 * S, table_row),
                             .weight = bench_acc(bench, 4 * S),
                             .table = bench_act(bench, EYE.positions * width),
                             .y = bench_act(bench, S * width)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(S * width)) +
                   count_acc_bytes(bench, 4.0 * (double)S) + 16.0 * (double)S;
}

static void weighted_bwd(bench_case *bench)
{
    int64_t width = EYE.hidden;
    bench->args.rows_weighted_bwd =
        (rows_weighted_bwd_args){.n = S,
                                 .width = width,
                                 .table_rows = EYE.positions,
                                 .index = bench_ints(bench, 4 * S, table_row),
                                 .weight = bench_acc(bench, 4 * S),
                                 .dy = bench_act(bench, S * width),
                                 .dtable = bench_acc(bench, EYE.positions * width)};
    bench->bytes = count_act_bytes(bench, (double)(S * width)) +
                   count_acc_bytes(bench, 4.0 * (double)S) + 16.0 * (double)S +
                   count_acc_bytes(bench, 2.0 * (double)(EYE.positions * width));
}

static void xent(bench_case *bench)
{
    int64_t n = LOGIT_ROWS, vocab = TEXT.vocab;
    bench->args.xent = (xent_args){.n = n,
                                   .vocab = vocab,
                                   .label = bench_ints(bench, n, some_token),
                                   .weight = bench_acc(bench, n),
                                   .logits = bench_act(bench, n * vocab),
                                   .backward = true,
                                   .loss_sum = bench_raw(bench, 8),
                                   .weight_sum = bench_raw(bench, 8)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(n * vocab));
}

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

enum { UNIT_GROUPS = 5 }; /* as many as the parameters of a model have (model/params.h) */

static void unit_finish(bench_case *bench)
{
    bench->args.unit_finish =
        (unit_finish_args){.groups = UNIT_GROUPS,
                           .first = true,
                           .last = true,
                           .max_norm = 1.0,
                           .squares = bench_raw(bench, UNIT_GROUPS * sizeof(double)),
                           .loss = bench_raw(bench, 8),
                           .weight = bench_raw(bench, 8),
                           .after_group = bench_raw(bench, UNIT_GROUPS * sizeof(double)),
                           .last_norm = bench_raw(bench, 8),
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

/* What one of 8 ranks gathers of a layer's experts, and what it sums of their gradients. It uses as
 * many multiprocessors as a simulated layout does (comm.replay_blocks), and no link limits it. */
enum { RANKS = 8, REPLAY_BLOCKS = 16 };

static int64_t experts_piece(const bench_case *bench)
{
    return TEXT.experts * TEXT.hidden * TEXT.expert_width * 3 / RANKS;
}

static void paced_copy(bench_case *bench)
{
    const int64_t n = experts_piece(bench), size = (int64_t)bench_act_bytes(bench);
    bench->args.paced_copy = (paced_copy_args){.pace = {.blocks = REPLAY_BLOCKS},
                                               .n = 1,
                                               .run = {{.y = bench_act(bench, (RANKS - 1) * n),
                                                        .x = bench_act(bench, n),
                                                        .bytes = (RANKS - 1) * n * size,
                                                        .x_bytes = n * size}}};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)((RANKS - 1) * n));
}

static void paced_sum(bench_case *bench)
{
    const int64_t n = experts_piece(bench);
    bench->args.paced_sum = (paced_sum_args){.pace = {.blocks = REPLAY_BLOCKS},
                                             .n = n,
                                             .pieces = RANKS,
                                             .acc = true,
                                             .x = bench_acc(bench, RANKS * n),
                                             .y = bench_acc(bench, n)};
    bench->bytes = count_acc_bytes(bench, (double)((RANKS + 1) * n));
}

#define ROW(op, shape, make)                                                                       \
    {                                                                                              \
        BENCH_##op, #op, shape, make                                                               \
    }
const bench_row bench_memory[] = {
    ROW(add, "residual", add_residual),
    ROW(scale, "hidden", scale),
    ROW(dequantise, "gate up, nf4", dequantise_nf4),
    ROW(dequantise, "gate up, int8", dequantise_int8),
    ROW(dora_norm, "q", dora_norm),
    ROW(dora_fwd, "q", dora_fwd),
    ROW(dora_bwd, "q", dora_bwd),
    ROW(bias_grad, "vision fc1", bias_grad),
    ROW(rmsnorm_fwd, "hidden", rmsnorm_hidden),
    ROW(rmsnorm_bwd, "hidden, residual", rmsnorm_hidden_bwd),
    ROW(norm_rope_fwd, "q", norm_rope),
    ROW(norm_rope_bwd, "q", norm_rope_bwd),
    ROW(layernorm_fwd, "vision", layernorm),
    ROW(layernorm_bwd, "vision, residual", layernorm_bwd),
    ROW(rope_text, "angles", rope_text),
    ROW(rope_vision, "angles", rope_vision),
    ROW(rope_apply, "vision q", rope_apply),
    ROW(swiglu_fwd, "slots", bench_swiglu),
    ROW(swiglu_bwd, "slots", swiglu_bwd),
    ROW(gelu_fwd, "vision", bench_gelu),
    ROW(gelu_bwd, "vision", gelu_bwd),
    ROW(patch_input, "stills", patch_input),
    ROW(rows_gather, "slots", gather_slots),
    ROW(rows_scatter, "embedding", scatter_embedding),
    ROW(rows_scatter, "visual rows", scatter_visual),
    ROW(rows_weighted, "position table", weighted),
    ROW(rows_weighted_bwd, "position table", weighted_bwd),
    ROW(xent, "chunk", xent),
    ROW(sum_squares, "a layer's gate up", sum_squares),
    ROW(step_finish, "scalars", step_finish),
    ROW(unit_finish, "scalars", unit_finish),
    ROW(adamw, "a layer's gate up", adamw),
    ROW(adamw, "its 8 bits and bf16", adamw_coded),
    ROW(paced_copy, "a layer's experts", paced_copy),
    ROW(paced_sum, "a layer's experts", paced_sum),
    {.op_name = NULL},
};
