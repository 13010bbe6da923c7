/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_parity.c: the program that layouts.py runs, in float and in double. One rank writes the
 * losses of a run, and every parameter's gradient of its first step, to a file; several ranks of
 * any layout compare theirs with that file.
 *
 *   ranks_parity write FILE [OPTIONS OF THE TRAINER]
 *   mpirun -np N ranks_parity compare FILE GRADIENT LOSS [OPTIONS OF THE TRAINER]
 *
 * GRADIENT is the largest error of a tensor's gradient, as a share of its 2-norm, and also of the
 * first step's loss. LOSS is the largest relative error of the other losses.
 *
 * Variables of the environment:
 *
 * RANKS_PARITY_TIES: all routers are zero, so that every token takes the first experts and none
 * takes the others.
 *
 * RANKS_PARITY_LOSSES: a file for the losses of several ranks, written exactly, one a line.
 *
 * RANKS_PARITY_PLANNED: no step may allocate device or pinned memory. Libraries may not either, so
 * this is for the emulated device.
 *
 * RANKS_PARITY_BESIDE: a file of one rank in a coarser number type (BF16). A tensor may then be off
 * by twice what it is off there, plus GRADIENT of its norm, and LOSS holds for all steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/nccl/call_record.h"
#include "tests/parallel/ledger_formula.h"
#include "tests/parallel/slots_watch.h"
#include "trainer/run/step.h"

static const char loss_name[] = "loss";

typedef struct outcome {
    double *loss; /* [steps] */
    int64_t steps;
    step_report last;
    void **gradient; /* [params.n], each [own_n] of the accumulation type in host memory */
} outcome;

static status zero_routers(session *run)
{
    for (int64_t i = 0; i < run->params->count; i++) {
        const param *weight = &run->params->list[i];
        if (weight->group != GROUP_ROUTER)
            continue;
        double *zeros = calloc((size_t)weight->n_local, sizeof *zeros);
        if (!zeros)
            return FAIL(ST_NO_MEMORY, "no memory for %s", weight->name);
        status st = params_write(weight, run->stream, 0, weight->n_local, zeros);
        free(zeros);
        TRY(st);
    }
    return ST_OK;
}

static status keep_gradients(session *run, outcome *result)
{
    const backend_vtable *backend = run->device->backend;
    for (int64_t i = 0; i < run->params->count; i++) {
        const param *weight = &run->params->list[i];
        size_t bytes = (size_t)weight->own_n * st_dtype_size(backend->acc);
        result->gradient[i] = calloc(1, bytes ? bytes : 1);
        if (!result->gradient[i])
            return FAIL(ST_NO_MEMORY, "no memory for the gradient of %s", weight->name);
        if (weight->own_grad) /* NULL: frozen, with a gradient of zero */
            TRY(backend->to_host(run->stream, result->gradient[i], weight->own_grad, bytes));
    }
    return backend->wait(run->stream);
}

static status record_steps(session *run, outcome *result)
{
    result->steps = run->conf->training_steps;
    result->loss = calloc((size_t)result->steps, sizeof *result->loss);
    result->gradient = calloc((size_t)run->params->count, sizeof *result->gradient);
    if (!result->loss || !result->gradient)
        return FAIL(ST_NO_MEMORY, "no memory for %lld steps", (long long)result->steps);
    if (getenv("RANKS_PARITY_TIES"))
        TRY(zero_routers(run));
    for (int64_t step = 1; step <= result->steps; step++) {
        slots_watch_clear();
        TRY(step_run(run, step, &result->last));
        result->loss[step - 1] = result->last.loss;
        if (step == 1)
            TRY(keep_gradients(run, result));
    }
    return ST_OK;
}

static status write_file(const session *run, const outcome *result, const char *path)
{
    const st_dtype acc = run->device->backend->acc;
    st_tensor *list = calloc((size_t)run->params->count + 1, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of tensors");
    size_t count = 0;
    list[count++] =
        (st_tensor){.name = loss_name,
                    .dtype = DT_F64,
                    .n_dims = 1,
                    .shape = {result->steps},
                    .data = span_of(result->loss, (size_t)result->steps * sizeof *result->loss)};
    for (int64_t i = 0; i < run->params->count; i++) {
        const param *weight = &run->params->list[i];
        list[count++] = (st_tensor){
            .name = weight->name,
            .dtype = acc,
            .n_dims = 1,
            .shape = {weight->count},
            .data = span_of(result->gradient[i], (size_t)weight->count * st_dtype_size(acc))};
    }
    status st = st_write(path, list, count, NULL, 0);
    free(list);
    return st;
}

static double load_number(const void *array, st_dtype acc, int64_t index)
{
    return acc == DT_F64 ? ((const double *)array)[index] : (double)((const float *)array)[index];
}

enum { SUMS = 4 };

/* Writes the sums of this rank's part of a tensor to out: [0] of squared errors, [1] of the squares
 * of `want`, [2] the number of elements, [3] of squared errors of `beside` (0 if NULL). */
static void sum_errors(const param *weight, const void *got, const void *want, const void *beside,
                       st_dtype acc, double out[SUMS])
{
    out[0] = out[1] = out[3] = 0;
    out[2] = (double)weight->own_n;
    for (int64_t i = 0, run, stored; i < weight->own_n; i += run) {
        run = slice_run(&weight->held, weight->own_first + i, weight->own_n - i, &stored);
        for (int64_t j = 0; j < run; j++) {
            double wanted = load_number(want, acc, stored + j),
                   difference = load_number(got, acc, i + j) - wanted;
            double off_beside = beside ? load_number(beside, acc, stored + j) - wanted : 0;
            out[0] += difference * difference;
            out[1] += wanted * wanted;
            out[3] += off_beside * off_beside;
        }
    }
}

/* Sums [count][SUMS] over all ranks. Replicas have the same values, which does not change the
 * ratios.
 */
static status sum_ranks(const session *run, double *squares, int64_t count)
{
    const comm *all = mesh_comm(&run->mesh, MESH_WORLD);
    int64_t bytes = SUMS * count * (int64_t)sizeof *squares;
    double *of = malloc((size_t)(bytes * all->size));
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' sums", all->size);
    status st = comm_host_all_gather(all, (comm_at){"parity", -1}, squares, of, bytes);
    for (int peer = 0; peer < all->size && st == ST_OK; peer++)
        for (int64_t i = 0; i < SUMS * count; i++)
            squares[i] = (peer ? squares[i] : 0) + of[peer * SUMS * count + i];
    free(of);
    return st;
}

/* The file of one rank, and the file of RANKS_PARITY_BESIDE. */
typedef struct reference {
    st_file file, beside;
    const char *path, *beside_path; /* beside_path NULL: there is no second file */
} reference;

static status square_all(const session *run, const outcome *result, const reference *answer,
                         double *squares)
{
    const st_dtype acc = run->device->backend->acc;
    for (int64_t i = 0; i < run->params->count; i++) {
        const param *weight = &run->params->list[i];
        const st_tensor *want, *beside = NULL;
        TRY(st_want(&answer->file, weight->name, acc, 1, answer->path, &want));
        if (answer->beside_path)
            TRY(st_want(&answer->beside, weight->name, acc, 1, answer->beside_path, &beside));
        sum_errors(weight, result->gradient[i], want->data.data, beside ? beside->data.data : NULL,
                   acc, squares + SUMS * i);
    }
    return sum_ranks(run, squares, run->params->count);
}

static status compare_gradients(const session *run, const outcome *result, const reference *answer,
                                double most)
{
    const int64_t count = run->params->count;
    double worst = 0, all[SUMS] = {0}, *squares = calloc((size_t)count, SUMS * sizeof *squares);
    const char *where = "none";
    status st = squares ? square_all(run, result, answer, squares)
                        : FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count && st == ST_OK; i++) {
        const double *sums = squares + SUMS * i;
        const param *weight = &run->params->list[i];
        if (sums[2] != (double)(weight->count * run->mesh.layout.replicate))
            st = FAIL(ST_BAD_INPUT, "%s: a replica stores %.0f of its %lld elements", weight->name,
                      sums[2] / (double)run->mesh.layout.replicate, (long long)weight->count);
        double more = sqrt(sums[0]) - 2 * sqrt(sums[3]);
        /* A gradient of zeros must stay zeros, and an infinite reference allows no error. */
        double off = more <= 0 && isfinite(more) ? 0 : fabs(more) / sqrt(sums[1]);
        if (!(off <= worst) && !isnan(worst)) { /* a NaN is the worst, and stays so */
            worst = off;
            where = weight->name;
        }
        for (int k = 0; k < SUMS; k++)
            all[k] += sums[k];
    }
    free(squares);
    if (st == ST_OK && run->mesh.rank == 0 && answer->beside_path)
        printf("gradients: all %.2e, of one rank %.2e; worst beyond twice that %.2e, %s\n",
               sqrt(all[0] / all[1]), sqrt(all[3] / all[1]), worst, where);
    else if (st == ST_OK && run->mesh.rank == 0)
        printf("gradients: worst %.2e, %s\n", worst, where);
    if (st == ST_OK && !(worst <= most))
        st = FAIL(ST_BAD_INPUT, "the gradient of %s is off by %.3g of its norm; the limit is %.3g",
                  where, worst, most);
    return st;
}

static status compare_losses(const session *run, const outcome *result, const st_file *tensors,
                             const char *path, const double most[2])
{
    const st_tensor *tensor;
    double worst = 0;
    TRY(st_want(tensors, loss_name, DT_F64, 1, path, &tensor));
    if (tensor->shape[0] != result->steps)
        return FAIL_IN(ST_BAD_INPUT, path, "the file has %lld steps, this run %lld",
                       (long long)tensor->shape[0], (long long)result->steps);
    for (int64_t i = 0; i < result->steps; i++) {
        double want = load_number(tensor->data.data, DT_F64, i);
        double off = want == result->loss[i] ? 0 : fabs(result->loss[i] - want) / fabs(want);
        worst = off > worst ? off : worst;
        if (!(off <= most[i > 0]))
            return FAIL(ST_BAD_INPUT,
                        "step %lld: the loss is %.9g, that of one rank %.9g: off by %.3g",
                        (long long)(i + 1), result->loss[i], want, off);
    }
    if (run->mesh.rank == 0)
        printf("losses: %.6f -> %.6f, worst %.2e\n", result->loss[0],
               result->loss[result->steps - 1], worst);
    return ST_OK;
}

static status compare_reference(const session *run, const outcome *result, const char *path,
                                const double most[2])
{
    reference answer = {.path = path, .beside_path = getenv("RANKS_PARITY_BESIDE")};
    const double coarse[2] = {most[1], most[1]};
    TRY(st_open(path, &answer.file));
    status st = answer.beside_path ? st_open(answer.beside_path, &answer.beside) : ST_OK;
    if (st == ST_OK) {
        st = compare_gradients(run, result, &answer, most[0]);
        if (st == ST_OK)
            st =
                compare_losses(run, result, &answer.file, path, answer.beside_path ? coarse : most);
        if (answer.beside_path)
            st_close(&answer.beside);
    }
    st_close(&answer.file);
    return st;
}

static status write_losses(const session *run, const outcome *result)
{
    const char *path = getenv("RANKS_PARITY_LOSSES");
    if (!path || run->mesh.rank > 0)
        return ST_OK;
    FILE *file = fopen(path, "we");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot be written");
    for (int64_t i = 0; i < result->steps; i++)
        fprintf(file, "%a\n", result->loss[i]);
    return fclose(file) == 0 ? ST_OK : FAIL_IN(ST_IO, path, "cannot be written");
}

/* Checks the ledger. This must come before any other call is made. */
static status check_calls(const session *run, const outcome *result, const world *job)
{
    TRY(ledger_formula_check(run, &result->last, job->ledger));
    return record_check(job->ledger, job->place.rank);
}

/* Checks that steps were captured where they should be: for each shape of batch, from its third
 * step on. */
static status check_captures(const session *run, const outcome *result)
{
    const bool shared = run->mesh.layout.expert * run->mesh.layout.expert_tensor > 1;
    const bool wanted = strcmp(run->conf->cuda_graph_scope, "step") == 0 && result->steps > 2 &&
                        run->device->backend->capture_begin && run->mesh.layout.pipeline == 1 &&
                        (!shared || model_exchange(run->model));
    if (wanted == (run->device->counts.captures > 0))
        return ST_OK;
    return FAIL(ST_BAD_INPUT, "%lld graphs were captured", (long long)run->device->counts.captures);
}

/* Checks that no step allocated memory: all of it is allocated before the first step, whatever
 * experts the tokens go to. */
static status check_allocations(const session *run, int64_t before)
{
    const int64_t more = run->device->counts.allocations - before;
    if (more == 0 || !getenv("RANKS_PARITY_PLANNED"))
        return ST_OK;
    return FAIL(ST_BAD_INPUT, "the steps made %lld allocations", (long long)more);
}

static status parity(conf *options, const world *job, const char *path, const double *most)
{
    session run;
    outcome result = {0};
    if (options->parallelism_world_size == 0)
        options->parallelism_world_size = job->place.size;
    TRY(session_open(options, job, SESSION_TRAIN, &run));
    const int64_t allocated = run.device->counts.allocations;
    status st = record_steps(&run, &result);
    if (st == ST_OK && most)
        st = check_allocations(&run, allocated);
    if (st == ST_OK && most && job->place.size > 1)
        st = check_calls(&run, &result, job);
    if (st == ST_OK && most)
        st = check_captures(&run, &result);
    if (st == ST_OK && most)
        st = write_losses(&run, &result);
    if (st == ST_OK)
        st = most ? compare_reference(&run, &result, path, most) : write_file(&run, &result, path);
    for (int64_t i = 0; result.gradient && i < run.params->count; i++)
        free(result.gradient[i]);
    free(result.gradient);
    free(result.loss);
    session_close(&run);
    return st;
}

int main(int argc, char **argv)
{
    const bool compares = argc > 4 && strcmp(argv[1], "compare") == 0;
    double most[2];
    conf options;
    world job;
    if (!compares && (argc < 3 || strcmp(argv[1], "write") != 0)) {
        fprintf(stderr, "ranks_parity write FILE | compare FILE GRADIENT LOSS, then options\n");
        return 64;
    }
    char *path = argv[2];
    for (int i = 0; i < 2 && compares; i++)
        most[i] = strtod(argv[3 + i], NULL);
    int used = compares ? 4 : 2;
    argv[used] = argv[0];
    argc -= used;
    argv += used;
    log_init("parity", LOG_WARN, false);
    status st = conf_load(&options, &argc, argv);
    if (st == ST_OK) {
        st = world_open(&options, &job);
        if (st == ST_OK) {
            slots_watch(&job);
            st = parity(&options, &job, path, compares ? most : NULL);
            if (st != ST_OK)
                fprintf(stderr, "rank %d: %s\n", job.place.rank, status_text());
            st = world_close(&job, st);
        }
        conf_done(&options);
    } else {
        fprintf(stderr, "%s\n", status_text());
    }
    return status_exit_code(st);
}
