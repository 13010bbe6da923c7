/* optim_ops.c: gradient norm, scale of a step, and AdamW on the CPU (loss_ops.h). */
#include "trainer/ops/cpu/cpu_ops.h"

/* A chunk of a list: the elements [begin, end) of one of its tensors. */
typedef struct chunk {
    const optim_tensor *tensor;
    int64_t begin, end;
} chunk;

/* The list's chunk `index`, counted from the list's first chunk. */
static chunk chunk_of(const optim_list *list, int64_t index)
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

/* The arithmetic of unit_finish, also in cuda/optim_ops.cu. */
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
    if (step->skip == 0 && !isfinite(squares)) {
        step->skip = 1;
        step->stopped = (double)args->unit + 1;
    }
    const double norm = *args->last_norm > 0 ? *args->last_norm : sqrt(squares) / weight;
    const bool clipped = args->max_norm > 0 && norm > args->max_norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? args->max_norm / norm : 1) / weight;
    if (args->last) {
        step->grad_norm = weight > 0 ? sqrt(args->after_group[args->groups - 1]) / weight : 0;
        *args->last_norm = step->skip != 0 ? *args->last_norm : step->grad_norm;
    }
    return ST_OK;
}

static void adamw_chunk(const step_scalars *step, const chunk *range)
{
    const optim_tensor *tensor = range->tensor;
    const double lr = step->lr * tensor->lr_factor;
    const real b1 = (real)step->beta1, b2 = (real)step->beta2;
    const real c1 = (real)(1 - step->beta1), c2 = (real)(1 - step->beta2);
    const real rate = (real)(lr / step->bias1), root2 = (real)(1 / sqrt(step->bias2));
    const real keep = (real)(1 - lr * tensor->decay), eps = (real)step->eps,
               scale = (real)step->grad_scale;
    real *p = tensor->p, *m = tensor->m, *v = tensor->v;
    const real *g = tensor->g;
#pragma omp simd
    for (int64_t i = range->begin; i < range->end; i++) {
        real gi = g[i] * scale;
        real mi = b1 * m[i] + c1 * gi, vi = b2 * v[i] + c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - rate * mi / (REAL_SQRT(vi) * root2 + eps);
    }
}

static void adamw_chunks(const void *context, part todo)
{
    const adamw_args *args = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        chunk range = chunk_of(&args->list, i);
        adamw_chunk(args->step, &range);
    }
}

status CPU_OP(adamw)(stream *queue, const adamw_args *args)
{
    if (args->step->skip == 0)
        cpu_run(queue, args->list.n_chunks, 4 * OPTIM_CHUNK, adamw_chunks, args);
    return ST_OK;
}
