/* cases_memory.c: cases of ops that are limited by memory bandwidth: norms, rotary embeddings,
 * activations, rows, head, optimiser. T and S are the tokens and the patches of the micro-batch. */
#include "trainer/bench/cases.h"

enum { LOGIT_ROWS = 1024 };
#define TEXT (c->sizes->dims->text)
#define EYE  (c->sizes->dims->vision)
#define T    (c->sizes->tokens)
#define S    (c->sizes->patches)

static double count_act_bytes(const bench_case *c, double n)
{
    return bench_act_bytes(c) * n;
}

static double count_acc_bytes(const bench_case *c, double n)
{
    return bench_acc_bytes(c) * n;
}

static void add_residual(bench_case *c)
{
    int64_t n = T * TEXT.hidden;
    c->args.add =
        (add_args){.n = n, .a = bench_act(c, n), .b = bench_act(c, n), .y = bench_act(c, n)};
    c->bytes = count_act_bytes(c, 3.0 * (double)n);
}

/* The scaling of an adapter's result. It scales by 1 here, so that repeated calls stay finite. */
static void scale(bench_case *c)
{
    int64_t n = T * TEXT.hidden;
    c->args.scale = (scale_args){.n = n, .factor = 1.0, .y = bench_act(c, n)};
    c->bytes = count_act_bytes(c, 2.0 * (double)n);
}

static void bias_grad(bench_case *c)
{
    int64_t rows = S, n = EYE.intermediate;
    c->args.bias_grad =
        (bias_grad_args){.rows = rows, .n = n, .dy = bench_act(c, rows * n), .db = bench_acc(c, n)};
    c->bytes = count_act_bytes(c, (double)(rows * n));
}

static void rmsnorm(bench_case *c, bool backward, int64_t rows, int64_t n)
{
    void *x = bench_act(c, rows * n), *w = bench_act(c, n), *rstd = bench_acc(c, rows);
    void *y = bench_act(c, rows * n);
    if (backward) /* adds the residual's gradient as well */
        c->args.rmsnorm_bwd = (rmsnorm_bwd_args){.rows = rows,
                                                 .n = n,
                                                 .x = x,
                                                 .w = w,
                                                 .rstd = rstd,
                                                 .dy = y,
                                                 .dx = bench_act(c, rows * n),
                                                 .dw = bench_acc(c, n),
                                                 .dx_accumulate = true};
    else
        c->args.rmsnorm_fwd = (rmsnorm_fwd_args){
            .rows = rows, .n = n, .eps = 1e-6, .x = x, .w = w, .y = y, .rstd = rstd};
    c->bytes = count_act_bytes(c, (backward ? 4.0 : 2.0) * (double)(rows * n)) +
               count_acc_bytes(c, (double)rows);
}

static void rmsnorm_hidden(bench_case *c)
{
    rmsnorm(c, false, T, TEXT.hidden);
}

static void rmsnorm_hidden_bwd(bench_case *c)
{
    rmsnorm(c, true, T, TEXT.hidden);
}

static void norm_rope(bench_case *c)
{
    int64_t heads = TEXT.heads, d = TEXT.head_dim, n = T * heads * d;
    c->args.norm_rope_fwd = (norm_rope_fwd_args){.rows = T,
                                                 .heads = heads,
                                                 .head_dim = d,
                                                 .eps = 1e-6,
                                                 .x = bench_act(c, n),
                                                 .w = bench_act(c, d),
                                                 .cos = bench_acc(c, T * d / 2),
                                                 .sin = bench_acc(c, T * d / 2),
                                                 .y = bench_act(c, n),
                                                 .rstd = bench_acc(c, T * heads)};
    c->bytes = count_act_bytes(c, 2.0 * (double)n) + count_acc_bytes(c, (double)(T * (d + heads)));
}

static void norm_rope_bwd(bench_case *c)
{
    int64_t heads = TEXT.heads, d = TEXT.head_dim, n = T * heads * d;
    void *dy = bench_act(c, n); /* in place, as the model calls it */
    c->args.norm_rope_bwd = (norm_rope_bwd_args){.rows = T,
                                                 .heads = heads,
                                                 .head_dim = d,
                                                 .x = bench_act(c, n),
                                                 .w = bench_act(c, d),
                                                 .cos = bench_acc(c, T * d / 2),
                                                 .sin = bench_acc(c, T * d / 2),
                                                 .rstd = bench_acc(c, T * heads),
                                                 .dy = dy,
                                                 .dx = dy,
                                                 .dw = bench_acc(c, d)};
    c->bytes = count_act_bytes(c, 3.0 * (double)n) + count_acc_bytes(c, (double)(T * (d + heads)));
}

static void layernorm(bench_case *c)
{
    int64_t rows = S, n = EYE.hidden;
    c->args.layernorm_fwd = (layernorm_fwd_args){.rows = rows,
                                                 .n = n,
                                                 .eps = 1e-6,
                                                 .x = bench_act(c, rows * n),
                                                 .w = bench_act(c, n),
                                                 .b = bench_act(c, n),
                                                 .y = bench_act(c, rows * n),
                                                 .mean = bench_acc(c, rows),
                                                 .rstd = bench_acc(c, rows)};
    c->bytes =
        count_act_bytes(c, 2.0 * (double)(rows * n)) + count_acc_bytes(c, 2.0 * (double)rows);
}

static void layernorm_bwd(bench_case *c)
{
    int64_t rows = S, n = EYE.hidden;
    c->args.layernorm_bwd = (layernorm_bwd_args){.rows = rows,
                                                 .n = n,
                                                 .x = bench_act(c, rows * n),
                                                 .w = bench_act(c, n),
                                                 .mean = bench_acc(c, rows),
                                                 .rstd = bench_acc(c, rows),
                                                 .dy = bench_act(c, rows * n),
                                                 .dx = bench_act(c, rows * n),
                                                 .dw = bench_acc(c, n),
                                                 .db = bench_acc(c, n),
                                                 .dx_accumulate = true};
    c->bytes =
        count_act_bytes(c, 4.0 * (double)(rows * n)) + count_acc_bytes(c, 2.0 * (double)rows);
}

static int32_t position(const bench_sizes *z, int64_t i)
{
    return (int32_t)(i % z->row);
}

static void rope_text(bench_case *c)
{
    int64_t half = TEXT.head_dim / 2;
    c->args.rope_text = (rope_text_args){
        .tokens = T,
        .head_dim = TEXT.head_dim,
        .theta = TEXT.rope_theta,
        .section = {TEXT.mrope_section[0], TEXT.mrope_section[1], TEXT.mrope_section[2]},
        .positions = bench_ints(c, 3 * T, position),
        .cos = bench_acc(c, T * half),
        .sin = bench_acc(c, T * half)};
    c->bytes = count_acc_bytes(c, 2.0 * (double)(T * half)) + 12.0 * (double)T;
}

static void rope_vision(bench_case *c)
{
    int64_t d = dims_vision_head_dim(c->sizes->dims);
    c->args.rope_vision = (rope_vision_args){.patches = S,
                                             .head_dim = d,
                                             .theta = 10000.0,
                                             .row_col = bench_ints(c, 2 * S, position),
                                             .cos = bench_acc(c, S * d / 2),
                                             .sin = bench_acc(c, S * d / 2)};
    c->bytes = count_acc_bytes(c, (double)(S * d)) + 8.0 * (double)S;
}

/* Rotates the q part of packed q, k and v. */
static void rope_apply(bench_case *c)
{
    int64_t heads = EYE.heads, d = dims_vision_head_dim(c->sizes->dims), stride = 3 * heads * d;
    c->args.rope_apply = (rope_apply_args){.rows = S,
                                           .heads = heads,
                                           .head_dim = d,
                                           .x_stride = stride,
                                           .cos = bench_acc(c, S * d / 2),
                                           .sin = bench_acc(c, S * d / 2),
                                           .x = bench_act(c, S * stride)};
    c->bytes =
        count_act_bytes(c, 2.0 * (double)(S * heads * d)) + count_acc_bytes(c, (double)(S * d));
}

static void bench_swiglu(bench_case *c)
{
    int64_t rows = T * TEXT.top_k, n = TEXT.expert_width;
    c->args.swiglu_fwd = (swiglu_fwd_args){
        .rows = rows, .width = n, .x = bench_act(c, 2 * rows * n), .y = bench_act(c, rows * n)};
    c->bytes = count_act_bytes(c, 3.0 * (double)(rows * n));
}

static void swiglu_bwd(bench_case *c)
{
    int64_t rows = T * TEXT.top_k, n = TEXT.expert_width;
    void *x = bench_act(c, 2 * rows * n);
    c->args.swiglu_bwd =
        (swiglu_bwd_args){.rows = rows, .width = n, .x = x, .dy = bench_act(c, rows * n), .dx = x};
    c->bytes = count_act_bytes(c, 5.0 * (double)(rows * n));
}

static void bench_gelu(bench_case *c)
{
    int64_t n = S * EYE.intermediate;
    c->args.gelu_fwd =
        (gelu_fwd_args){.kind = GELU_TANH, .n = n, .x = bench_act(c, n), .y = bench_act(c, n)};
    c->bytes = count_act_bytes(c, 2.0 * (double)n);
}

static void gelu_bwd(bench_case *c)
{
    int64_t n = S * EYE.intermediate;
    c->args.gelu_bwd = (gelu_bwd_args){.kind = GELU_TANH,
                                       .n = n,
                                       .x = bench_act(c, n),
                                       .dy = bench_act(c, n),
                                       .dx = bench_act(c, n)};
    c->bytes = count_act_bytes(c, 3.0 * (double)n);
}

static void patch_input(bench_case *c)
{
    int64_t wide = EYE.patch_bytes;
    c->args.patch_input = (patch_input_args){
        .patches = S, .pixels = bench_raw(c, S * wide / 2), .out = bench_act(c, S * wide)};
    c->bytes = (double)(S * wide / 2) + count_act_bytes(c, (double)(S * wide));
}

static int32_t some_token(const bench_sizes *z, int64_t i)
{
    return (int32_t)(i * 7919 % z->dims->text.vocab);
}

static int32_t slot_token(const bench_sizes *z, int64_t i)
{
    return (int32_t)(i * 7919 % z->tokens);
}

static int32_t own_row(const bench_sizes *z, int64_t i)
{
    (void)z;
    return (int32_t)i;
}

static void gather_slots(bench_case *c)
{
    int64_t n = T * TEXT.top_k, width = TEXT.hidden;
    c->args.rows_gather = (rows_gather_args){.n = n,
                                             .width = width,
                                             .index = bench_ints(c, n, slot_token),
                                             .x = bench_act(c, T * width),
                                             .y = bench_act(c, n * width)};
    c->bytes = count_act_bytes(c, (double)((n + T) * width)) + 4.0 * (double)n;
}

static void scatter_embedding(bench_case *c)
{
    int64_t width = TEXT.hidden;
    c->args.rows_scatter = (rows_scatter_args){.n = T,
                                               .width = width,
                                               .y_rows = TEXT.vocab,
                                               .index = bench_ints(c, T, some_token),
                                               .x = bench_act(c, T * width),
                                               .y = bench_acc(c, TEXT.vocab * width),
                                               .y_acc = true};
    c->bytes =
        count_act_bytes(c, (double)(T * width)) + count_acc_bytes(c, 2.0 * (double)(T * width));
}

static void scatter_visual(bench_case *c)
{
    int64_t n = S / 4 < T ? S / 4 : T, width = TEXT.hidden;
    c->args.rows_scatter = (rows_scatter_args){.n = n,
                                               .width = width,
                                               .y_rows = T,
                                               .index = bench_ints(c, n, own_row),
                                               .x = bench_act(c, n * width),
                                               .y = bench_act(c, T * width),
                                               .distinct = true};
    c->bytes = count_act_bytes(c, 3.0 * (double)(n * width));
}

static int32_t table_row(const bench_sizes *z, int64_t i)
{
    return (int32_t)(i / 4 * 13 % z->dims->vision.positions);
}

static void weighted(bench_case *c)
{
    int64_t width = EYE.hidden;
    c->args.rows_weighted = (rows_weighted_args){.n = S,
                                                 .width = width,
                                                 .table_rows = EYE.positions,
                                                 .index = bench_ints(c, 4 * S, table_row),
                                                 .weight = bench_acc(c, 4 * S),
                                                 .table = bench_act(c, EYE.positions * width),
                                                 .y = bench_act(c, S * width)};
    c->bytes = count_act_bytes(c, 2.0 * (double)(S * width)) + count_acc_bytes(c, 4.0 * (double)S) +
               16.0 * (double)S;
}

static void weighted_bwd(bench_case *c)
{
    int64_t width = EYE.hidden;
    c->args.rows_weighted_bwd =
        (rows_weighted_bwd_args){.n = S,
                                 .width = width,
                                 .table_rows = EYE.positions,
                                 .index = bench_ints(c, 4 * S, table_row),
                                 .weight = bench_acc(c, 4 * S),
                                 .dy = bench_act(c, S * width),
                                 .dtable = bench_acc(c, EYE.positions * width)};
    c->bytes = count_act_bytes(c, (double)(S * width)) + count_acc_bytes(c, 4.0 * (double)S) +
               16.0 * (double)S + count_acc_bytes(c, 2.0 * (double)(EYE.positions * width));
}

static void xent(bench_case *c)
{
    int64_t n = LOGIT_ROWS, vocab = TEXT.vocab;
    c->args.xent = (xent_args){.n = n,
                               .vocab = vocab,
                               .label = bench_ints(c, n, some_token),
                               .weight = bench_acc(c, n),
                               .logits = bench_act(c, n * vocab),
                               .backward = true,
                               .loss_sum = bench_raw(c, 8),
                               .weight_sum = bench_raw(c, 8)};
    c->bytes = count_act_bytes(c, 2.0 * (double)(n * vocab));
}

static int64_t expert_values(const bench_case *c)
{
    return TEXT.experts * TEXT.hidden * 2 * TEXT.expert_width;
}

/* One tensor as large as a layer's gate and up weights. */
static optim_list one_tensor(bench_case *c, bool moments)
{
    int64_t n = expert_values(c);
    bool copy = moments && c->queue->dev->backend->act != c->queue->dev->backend->acc;
    optim_tensor host = {.n = n, .lr_factor = 1.0, .decay = 0.1, .g = bench_acc(c, n)};
    if (moments) {
        host.p = bench_acc(c, n);
        host.m = bench_acc(c, n);
        host.v = bench_acc(c, n);
        host.p_act = copy ? bench_act(c, n) : NULL;
    }
    c->bytes = count_acc_bytes(c, (moments ? 7.0 : 1.0) * (double)n) +
               (copy ? count_act_bytes(c, (double)n) : 0.0);
    return (optim_list){.tensor = bench_upload(c, &host, sizeof host),
                        .n_tensors = 1,
                        .n_chunks = (n + OPTIM_CHUNK - 1) / OPTIM_CHUNK};
}

static void sum_squares(bench_case *c)
{
    c->args.sum_squares =
        (sum_squares_args){.list = one_tensor(c, false), .total = bench_raw(c, 8)};
}

static void step_finish(bench_case *c)
{
    c->args.step_finish = (step_finish_args){.max_norm = 1.0,
                                             .sum_squares = bench_raw(c, 8),
                                             .weight = bench_raw(c, 8),
                                             .step = bench_raw(c, sizeof(step_scalars))};
    c->bytes = sizeof(step_scalars);
}

static void adamw(bench_case *c)
{
    step_scalars host = {.lr = 1e-5,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .bias1 = 0.1,
                         .bias2 = 0.05,
                         .grad_scale = 1.0};
    c->args.adamw =
        (adamw_args){.list = one_tensor(c, true), .step = bench_upload(c, &host, sizeof host)};
}

/* What one of 8 ranks gathers of a layer's experts, and what it sums of their gradients. It uses as
 * many multiprocessors as a simulated layout does (comm.replay_blocks), and no link limits it. */
enum { RANKS = 8, REPLAY_BLOCKS = 16 };

static int64_t experts_piece(const bench_case *c)
{
    return TEXT.experts * TEXT.hidden * TEXT.expert_width * 3 / RANKS;
}

static void paced_copy(bench_case *c)
{
    const int64_t n = experts_piece(c), size = (int64_t)bench_act_bytes(c);
    c->args.paced_copy = (paced_copy_args){.pace = {.blocks = REPLAY_BLOCKS},
                                           .n = 1,
                                           .run = {{.y = bench_act(c, (RANKS - 1) * n),
                                                    .x = bench_act(c, n),
                                                    .bytes = (RANKS - 1) * n * size,
                                                    .x_bytes = n * size}}};
    c->bytes = count_act_bytes(c, 2.0 * (double)((RANKS - 1) * n));
}

static void paced_sum(bench_case *c)
{
    const int64_t n = experts_piece(c);
    c->args.paced_sum = (paced_sum_args){.pace = {.blocks = REPLAY_BLOCKS},
                                         .n = n,
                                         .pieces = RANKS,
                                         .acc = true,
                                         .x = bench_acc(c, RANKS * n),
                                         .y = bench_acc(c, n)};
    c->bytes = count_acc_bytes(c, (double)((RANKS + 1) * n));
}

#define ROW(op, shape, make)                                                                       \
    {                                                                                              \
        BENCH_##op, #op, shape, make                                                               \
    }
const bench_row bench_memory[] = {
    ROW(add, "residual", add_residual),
    ROW(scale, "hidden", scale),
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
    ROW(adamw, "a layer's gate up", adamw),
    ROW(paced_copy, "a layer's experts", paced_copy),
    ROW(paced_sum, "a layer's experts", paced_sum),
    {.op_name = NULL},
};
