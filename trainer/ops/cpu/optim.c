/* optim.c: gradient norm, the step's scale, AdamW (loss_ops.h). */
#include "trainer/ops/cpu/cpu.h"

enum { SUM_BLOCK = 8192 }; /* elements whose squares are summed before they meet the others */

static double block_squares(const real *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

typedef struct squares_job {
    const sum_squares_args *a;
    double *part;
} squares_job;

static void squares_blocks(const void *context, part p)
{
    const squares_job *job = context;
    for (int64_t b = p.begin; b < p.end; b++)
        job->part[b] = block_squares((const real *)job->a->x + b * SUM_BLOCK,
                                     min_i64(SUM_BLOCK, job->a->n - b * SUM_BLOCK));
}

status CPU_OP(sum_squares)(stream *s, const sum_squares_args *a)
{
    int64_t blocks = ceil_div(a->n, SUM_BLOCK);
    void *scratch;
    TRY(cpu_scratch(s, (size_t)blocks * sizeof(double), &scratch));
    squares_job job = {a, scratch};
    cpu_run(s, blocks, SUM_BLOCK, squares_blocks, &job);
    for (int64_t b = 0; b < blocks; b++)
        *a->total += job.part[b];
    return ST_OK;
}

status CPU_OP(step_finish)(stream *s, const step_finish_args *a)
{
    (void)s;
    step_scalars *step = a->step;
    double weight = *a->weight;
    double norm = weight > 0 ? sqrt(*a->sum_squares) / weight : 0;
    bool clipped = a->max_norm > 0 && norm > a->max_norm;
    step->skip = !(weight > 0) || !isfinite(norm);
    step->grad_norm = norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? a->max_norm / norm : 1) / weight;
    return ST_OK;
}

static void adamw_part(const void *context, part todo)
{
    const adamw_args *a = context;
    const step_scalars *t = a->step;
    const double lr = t->lr * a->lr_factor;
    const real b1 = (real)t->beta1, b2 = (real)t->beta2;
    const real c1 = (real)(1 - t->beta1), c2 = (real)(1 - t->beta2);
    const real rate = (real)(lr / t->bias1), root2 = (real)(1 / sqrt(t->bias2));
    const real keep = (real)(1 - lr * a->decay), eps = (real)t->eps, scale = (real)t->grad_scale;
    real *p = a->p, *m = a->m, *v = a->v;
    const real *g = a->g;
#pragma omp simd
    for (int64_t i = todo.begin; i < todo.end; i++) {
        real gi = g[i] * scale;
        real mi = b1 * m[i] + c1 * gi, vi = b2 * v[i] + c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - rate * mi / (REAL_SQRT(vi) * root2 + eps);
    }
}

status CPU_OP(adamw)(stream *s, const adamw_args *a)
{
    if (a->step->skip == 0)
        cpu_run(s, a->n, 4, adamw_part, a);
    return ST_OK;
}
