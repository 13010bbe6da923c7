/* optim_ops.c: gradient norm and scale of a step on the CPU (loss_ops.h). */
#include "trainer/ops/cpu/optim_chunk.h"

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
