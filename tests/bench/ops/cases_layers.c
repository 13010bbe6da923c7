/* SPDX-License-Identifier: Apache-2.0 */
/* cases_layers.c: cases of a layer's ops beside its products: residuals, norms, rotary embeddings,
 * activations, adapters, and weights that are expanded from 4 or 8 bits. All are limited by memory
 * bandwidth. Letters: T, S the tokens and the patches of the micro-batch; n the elements of a row;
 * d the width of a head; x, y, w an op's input, output and weight. */
#include "tests/bench/ops/op_cases.h"

#define TEXT (bench->sizes->dims->text)
#define EYE  (bench->sizes->dims->vision)
#define T    (bench->sizes->tokens)
#define S    (bench->sizes->patches)

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

const bench_row bench_layers[] = {
    BENCH_ROW(add, "residual", add_residual),
    BENCH_ROW(scale, "hidden", scale),
    BENCH_ROW(dequantise, "gate up, nf4", dequantise_nf4),
    BENCH_ROW(dequantise, "gate up, int8", dequantise_int8),
    BENCH_ROW(dora_norm, "q", dora_norm),
    BENCH_ROW(dora_fwd, "q", dora_fwd),
    BENCH_ROW(dora_bwd, "q", dora_bwd),
    BENCH_ROW(bias_grad, "vision fc1", bias_grad),
    BENCH_ROW(rmsnorm_fwd, "hidden", rmsnorm_hidden),
    BENCH_ROW(rmsnorm_bwd, "hidden, residual", rmsnorm_hidden_bwd),
    BENCH_ROW(norm_rope_fwd, "q", norm_rope),
    BENCH_ROW(norm_rope_bwd, "q", norm_rope_bwd),
    BENCH_ROW(layernorm_fwd, "vision", layernorm),
    BENCH_ROW(layernorm_bwd, "vision, residual", layernorm_bwd),
    BENCH_ROW(rope_text, "angles", rope_text),
    BENCH_ROW(rope_vision, "angles", rope_vision),
    BENCH_ROW(rope_apply, "vision q", rope_apply),
    BENCH_ROW(swiglu_fwd, "slots", bench_swiglu),
    BENCH_ROW(swiglu_bwd, "slots", swiglu_bwd),
    BENCH_ROW(gelu_fwd, "vision", bench_gelu),
    BENCH_ROW(gelu_bwd, "vision", gelu_bwd),
    BENCH_ROW(patch_input, "stills", patch_input),
    {.op_name = NULL},
};
