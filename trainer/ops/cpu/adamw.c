/* adamw.c: AdamW on the CPU (loss_ops.h). Tensors in acc are updated in place. The others go block
 * by block: a block's moments are decoded, updated, and encoded with its new scale. */
#include <float.h>
#include <string.h>

#include "common/base/philox.h"
#include "trainer/ops/cpu/optim_chunk.h"

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
