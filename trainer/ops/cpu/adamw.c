/* SPDX-License-Identifier: Apache-2.0 */
/* adamw.c: AdamW, and the sums and scalars of an update, on the CPU (loss_ops.h). */
#include <float.h>
#include <string.h>

#include "common/base/philox.h"
#include "trainer/ops/cpu/cpu_ops.h"

/* A chunk of a list: the elements [begin, end) of one of its tensors. */
typedef struct chunk {
    const optim_tensor *tensor;
    int64_t begin, end;
} chunk;

/* The list's chunk `index`, counted from the list's first chunk. */
static inline chunk chunk_of(const optim_list *list, int64_t index)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = list->n_tensors;
    index += list->first_chunk;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (list->tensor[middle].first_chunk <= index)
            low = middle;
        else
            high = middle;
    }
    const optim_tensor *tensor = list->tensor + low;
    int64_t begin = (index - tensor->first_chunk) * OPTIM_CHUNK;
    return (chunk){tensor, begin, min_i64(begin + OPTIM_CHUNK, tensor->n)};
}

/* ---- sums and scalars ---- */

static double chunk_squares(const chunk *range)
{
    const real *x = range->tensor->g;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = range->begin; i < range->end; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

typedef struct squares_job {
    const sum_squares_args *args;
    double *part;
} squares_job;

static void squares_chunks(const void *context, part todo)
{
    const squares_job *job = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        chunk range = chunk_of(&job->args->list, i);
        job->part[i] = chunk_squares(&range);
    }
}

status CPU_OP(sum_squares)(stream *queue, const sum_squares_args *args)
{
    void *scratch;
    TRY(cpu_scratch(queue, (size_t)args->list.n_chunks * sizeof(double), &scratch));
    squares_job job = {args, scratch};
    cpu_run(queue, args->list.n_chunks, OPTIM_CHUNK, squares_chunks, &job);
    for (int64_t i = 0; i < args->list.n_chunks; i++)
        *args->total += job.part[i];
    return ST_OK;
}

status CPU_OP(step_finish)(stream *queue, const step_finish_args *args)
{
    (void)queue;
    step_scalars *step = args->step;
    double weight = *args->weight;
    double norm = weight > 0 ? sqrt(*args->sum_squares) / weight : 0;
    bool clipped = args->max_norm > 0 && norm > args->max_norm;
    step->skip = !(weight > 0) || !isfinite(norm);
    step->grad_norm = norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args->max_norm / norm : 1) / weight;
    return ST_OK;
}

/* After a step in which all units were updated. */
static void note_shares(const unit_finish_args *args)
{
    const double all = args->after_group[args->groups - 1];
    const double moved = args->step->share > 0 ? 1.0 / UNIT_SHARE_STEPS : 1.0;
    for (int64_t i = 0; i < args->units && all > 0; i++)
        args->share[i] += moved * (args->unit_squares[i] / all - args->share[i]);
}

/* The arithmetic of unit_finish, also in cuda/adamw.cu. */
status CPU_OP(unit_finish)(stream *queue, const unit_finish_args *args)
{
    (void)queue;
    step_scalars *step = args->step;
    const double weight = *args->weight;
    double squares = 0;
    if (args->first)
        step->skip = !(weight > 0) || !isfinite(*args->loss);
    for (int64_t j = 0; j < args->groups; j++) {
        squares += args->squares[j];
        args->after_group[j] = (args->first ? 0 : args->after_group[j]) + squares;
    }
    args->unit_squares[args->unit] = squares;
    step->share = (args->first ? 0 : step->share) + args->share[args->unit];
    if (step->skip == 0 && !isfinite(squares)) {
        step->skip = 1;
        step->stopped = (double)args->unit + 1;
    }
    const double all =
        step->share > 0 ? args->after_group[args->groups - 1] / step->share : squares;
    const double norm = sqrt(all) / weight;
    const bool clipped = args->max_norm > 0 && norm > args->max_norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args->max_norm / norm : 1) / weight;
    if (args->last) {
        step->grad_norm = weight > 0 ? sqrt(args->after_group[args->groups - 1]) / weight : 0;
        if (step->skip == 0)
            note_shares(args);
    }
    return ST_OK;
}

/* ---- AdamW ---- */

/* AdamW on the CPU (loss_ops.h). Tensors in acc are updated in place. The others go block
 * by block: a block's moments are decoded, updated, and encoded with its new scale. */

/* The scalars of the step and of a tensor, in the form that the arithmetic wants. */
typedef struct adamw_rates {
    real b1, b2, c1, c2, root2, eps, scale; /* root2: 1 / sqrt(bias2) */
    real keep, rate;
    uint64_t step;
} adamw_rates;

static adamw_rates rates_of(const step_scalars *step, const optim_tensor *tensor)
{
    const double lr = step->lr * tensor->lr_factor;
    return (adamw_rates){.b1 = (real)step->beta1,
                         .b2 = (real)step->beta2,
                         .c1 = (real)(1 - step->beta1),
                         .c2 = (real)(1 - step->beta2),
                         .root2 = (real)(1 / sqrt(step->bias2)),
                         .eps = (real)step->eps,
                         .scale = (real)step->grad_scale,
                         .keep = (real)(1 - lr * tensor->decay),
                         .rate = (real)(lr / step->bias1),
                         .step = (uint64_t)step->number};
}

/* p may be where out is; all arrays are [count]. */
static void update(const adamw_rates *rates, int64_t count, const real *g, const real *p, real *m,
                   real *v, real *out)
{
    const adamw_rates r = *rates;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        real gi = g[i] * r.scale;
        real mi = r.b1 * m[i] + r.c1 * gi, vi = r.b2 * v[i] + r.c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        out[i] = p[i] * r.keep - r.rate * mi / (REAL_SQRT(vi) * r.root2 + r.eps);
    }
}

enum { SHARED = 8, GROUPS = STATE_BLOCK / SHARED + 1 }; /* places that share a block of Philox */

/* out [SHARED * count]: 16 random bits for each place of groups [first, first + count). */
static void draw_groups(const uint32_t key[2], uint64_t step, uint64_t first, int64_t count,
                        uint16_t *out)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const uint64_t group = first + (uint64_t)i;
        uint32_t words[4];
        philox_draw(key[0], key[1], (uint32_t)group, (uint32_t)(group >> 32), (uint32_t)step,
                    (uint32_t)(step >> 32), words);
        for (int j = 0; j < SHARED; j++)
            out[SHARED * i + j] = (uint16_t)(words[j / 2] >> (j % 2 * 16));
    }
}

/* out [count]: the random numbers of the elements from `begin` on. */
static void draw_block(const optim_random *random, uint64_t step, int64_t begin, int64_t count,
                       uint16_t *out)
{
    uint16_t drawn[GROUPS * SHARED];
    for (int64_t i = 0, length; i < count; i += length) {
        const int64_t local = random->first + begin + i, left = random->run - local % random->run;
        const int64_t place =
            random->base + local / random->run * random->stride + local % random->run;
        length = min_i64(count - i, left);
        draw_groups(random->key, step, (uint64_t)(place / SHARED),
                    (place + length - 1) / SHARED - place / SHARED + 1, drawn);
        memcpy(out + i, drawn + place % SHARED, (size_t)length * sizeof *out);
    }
}

static void round_block(const adamw_rates *rates, const optim_tensor *tensor, int64_t begin,
                        int64_t count, const real *from, real *p)
{
    uint16_t drawn[STATE_BLOCK];
    if (tensor->rounding == OPTIM_RANDOM)
        draw_block(&tensor->random, rates->step, begin, count, drawn);
    for (int64_t i = 0; i < count; i++) {
        const float x = (float)from[i];
        const uint32_t upper = tensor->rounding == OPTIM_RANDOM ? state_round_randomly(x, drawn[i])
                                                                : state_round_nearest(x);
        p[i] = (real)state_bits_float(upper << 16);
    }
}

/* Encodes a block with its new scales. */
static void encode_block(const optim_tensor *tensor, int64_t begin, int64_t count, const real *m,
                         const real *v)
{
    uint8_t *first = (uint8_t *)tensor->m + begin, *second = (uint8_t *)tensor->v + begin;
    float most_m = 0, most_v = 0;
#pragma omp simd reduction(max : most_m, most_v)
    for (int64_t i = 0; i < count; i++) {
        const float size = (float)(m[i] < 0 ? -m[i] : m[i]), square = (float)v[i];
        most_m = size > most_m ? size : most_m;
        most_v = square > most_v ? square : most_v;
    }
    const float m_scale = state_scale(most_m), v_scale = state_scale(most_v);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        first[i] = state_first_code((float)m[i], m_scale);
        second[i] = state_second_code((float)v[i], v_scale);
    }
    tensor->m_scale[begin / STATE_BLOCK] = m_scale;
    tensor->v_scale[begin / STATE_BLOCK] = v_scale;
}

static void decode_block(const optim_tensor *tensor, int64_t begin, int64_t count, real *m, real *v)
{
    const uint8_t *first = (const uint8_t *)tensor->m + begin;
    const uint8_t *second = (const uint8_t *)tensor->v + begin;
    const float m_scale = tensor->m_scale[begin / STATE_BLOCK];
    const float v_scale = tensor->v_scale[begin / STATE_BLOCK];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        m[i] = (real)state_first_value(first[i], m_scale);
        v[i] = (real)state_second_value(second[i], v_scale);
    }
}

static void update_block(const adamw_rates *rates, const optim_tensor *tensor, int64_t begin,
                         int64_t count)
{
    real decoded[2][STATE_BLOCK], updated[STATE_BLOCK];
    real *p = (real *)tensor->p + begin;
    real *m = tensor->m_scale ? decoded[0] : (real *)tensor->m + begin;
    real *v = tensor->m_scale ? decoded[1] : (real *)tensor->v + begin;
    real *out = tensor->rounding == OPTIM_WHOLE ? p : updated;
    if (tensor->m_scale)
        decode_block(tensor, begin, count, m, v);
    update(rates, count, (const real *)tensor->g + begin, p, m, v, out);
    if (tensor->m_scale)
        encode_block(tensor, begin, count, m, v);
    if (tensor->rounding != OPTIM_WHOLE)
        round_block(rates, tensor, begin, count, updated, p);
}

static void adamw_chunks(const void *context, part todo)
{
    const adamw_args *args = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const chunk range = chunk_of(&args->list, i);
        const optim_tensor *tensor = range.tensor;
        const adamw_rates rates = rates_of(args->step, tensor);
        const bool plain = !tensor->m_scale && tensor->rounding == OPTIM_WHOLE;
        real *p = (real *)tensor->p + range.begin;
        if (plain)
            update(&rates, range.end - range.begin, (const real *)tensor->g + range.begin, p,
                   (real *)tensor->m + range.begin, (real *)tensor->v + range.begin, p);
        for (int64_t j = range.begin; j < range.end && !plain; j += STATE_BLOCK)
            update_block(&rates, tensor, j, min_i64(STATE_BLOCK, range.end - j));
    }
}

status CPU_OP(adamw)(stream *queue, const adamw_args *args)
{
    if (args->step->skip == 0)
        cpu_run(queue, args->list.n_chunks, 4 * OPTIM_CHUNK, adamw_chunks, args);
    return ST_OK;
}
