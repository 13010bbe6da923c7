/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_split.c: a model cut over ranks has the same loss and gradients as one rank has on the same
 * rows. mpirun runs it as each of the ranks, and every rank also computes the whole by itself.
 * There is no FSDP here: ranks that hold the same part of a parameter sum its gradients in this
 * file.
 *
 *   ranks_split FLAVOUR LIMIT LAYOUT..   a layout is shard.context.tensor.expert.expert-tensor
 *
 * Each layout meets rows with pictures and videos of different sizes, a consumer whose row has only
 * text, a step without any picture, and a router that sends every token to the same experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/parallel/world.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ST_OK) {                                                                     \
            log_status();                                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { ROWS = 8, ROW_DOCS = 3 };

/* One row per consumer, in order. */
static const document pictures[ROWS][ROW_DOCS] = {
    {{"4 1x4x6 3 1x6x4 2", 11}, {"3 v2x4x4 2 + 2", 22}, {"10", 33}},
    {{"41", 44}, {"7", 55}, {"18", 66}},
    {{"2 1x8x8 5 1x2x2 1 1x4x4 2", 77}, {"5", 88}, {"6 1x6x6 4", 99}},
    {{"90", 110}, {"3 1x2x4 9", 121}, {"4", 132}},
};
static const document words[ROWS][ROW_DOCS] = {
    {{"4 3 2", 11}, {"60", 22}, {"10", 33}},
    {{"41", 44}, {"7", 55}, {"18", 66}},
    {{"2", 77}, {"5", 88}, {"6 4", 99}},
    {{"90", 110}, {"3 9", 121}, {"4", 132}},
};

typedef struct scene {
    const char *name;
    const document (*rows)[ROW_DOCS];
    bool one_way;        /* every token goes to the first experts */
    unsigned recomputed; /* kinds that backward recomputes (recompute.h) */
    bool aux, fixed;
} scene;

static const scene scenes[] = {
    {.name = "images and text", .rows = pictures},
    {.name = "recomputed, at capacities",
     .rows = pictures,
     .recomputed = RECOMPUTE_ALL,
     .fixed = true},
    {.name = "norms again", .rows = pictures, .recomputed = RECOMPUTE_CHEAP},
    {.name = "all but routes again",
     .rows = pictures,
     .recomputed = RECOMPUTE_ALL & ~RECOMPUTE_ROUTE},
    {.name = "no image", .rows = words, .aux = true},
    {.name = "one way", .rows = pictures, .one_way = true},
};

/* Sets the routers to zero: all experts tie, and the first ones win. */
static void blind_routers(fixture *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        double *zero = calloc((size_t)weight->n_local, sizeof *zero);
        if (weight->group == GROUP_ROUTER)
            MUST(params_write(weight, setup->queue, 0, weight->n_local, zero));
        free(zero);
    }
}

static void open_scene(fixture *setup, const model_dims *dims, const mesh *ranks, const scene *now,
                       const batch_caps *cap)
{
    model_options options = {.cap = *cap,
                             .training = true,
                             .recomputed = {{.what = now->recomputed}, {.what = now->recomputed}},
                             .router_aux_coef = now->aux ? 0.3 : 0,
                             .logit_rows = 16};
    fixture_open_rank(setup, dims, ranks);
    if (now->one_way)
        blind_routers(setup);
    fixture_model(setup, &options, now->fixed);
}

static double run_rows(fixture *setup, const row *rows, int64_t count)
{
    device_batch *batch;
    double loss = 0;
    MUST(stage_rows(setup->staging, setup->queue, rows, count, &batch));
    MUST(setup->dev->backend->zero(setup->queue, setup->sums.loss, sizeof(double)));
    MUST(setup->dev->backend->zero(setup->queue, setup->sums.weight, sizeof(double)));
    MUST(params_zero_grad(setup->registry, setup->queue));
    MUST(model_forward_backward(setup->net, setup->queue, batch, &setup->sums));
    if (setup->mesh)
        MUST(comm_all_reduce(mesh_comm(setup->mesh, MESH_STAGE), setup->queue,
                             (comm_at){"loss", -1}, setup->sums.loss, 1, DT_F64, COMM_SUM));
    MUST(setup->dev->backend->to_host(setup->queue, &loss, setup->sums.loss, sizeof loss));
    MUST(setup->dev->backend->wait(setup->queue));
    return loss;
}

static void sum_gradients(fixture *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        param *weight = &setup->registry->list[i];
        const mesh_group groups[] = {params_owners(weight), MESH_REPLICATE};
        for (int group = 0; group < 2; group++)
            MUST(comm_all_reduce(mesh_comm(setup->mesh, groups[group]), setup->queue,
                                 (comm_at){"gradient", -1}, weight->grad, weight->n_local,
                                 setup->dev->backend->acc, COMM_SUM));
    }
}

/* |cut - whole| / |whole| over what this rank holds; returns that of the worst tensor. */
static double compare_fixtures(fixture *cut, fixture *whole, const char **out_name)
{
    double worst = 0;
    *out_name = "";
    for (int64_t i = 0; i < cut->registry->count; i++) {
        const param *weight = &cut->registry->list[i], *entry = &whole->registry->list[i];
        double *got = fixture_grad(cut, weight), *want = fixture_grad(whole, entry), off = 0,
               size = 0;
        for (int64_t j = 0, at; j < weight->n_local; j++) {
            slice_run(&weight->held, j, 1, &at);
            off += (got[j] - want[at]) * (got[j] - want[at]);
            size += want[at] * want[at];
        }
        double error = size > 0 ? sqrt(off / size) : sqrt(off);
        if (!(error <= worst)) {
            worst = error;
            *out_name = weight->name;
        }
        free(got);
        free(want);
    }
    return worst;
}

static int failures;

static void check_scene(const model_dims *dims, const mesh *ranks, const scene *now, double limit,
                        const char *text)
{
    fixture cut, whole;
    const char *name;
    int consumers = (int)(ranks->layout.replicate * ranks->layout.shard);
    row rows[ROWS];
    batch_caps all = {0}, one = {0};
    fixture_open(&whole, dims);
    for (int i = 0; i < consumers; i++) {
        rows[i] = fixture_row(&whole, now->rows[i % 4], ROW_DOCS, true);
        batch_caps_for(&rows[i], 1, now->fixed ? 16 : 1, 4, &one);
    }
    batch_caps_for(rows, consumers, 1, 4, &all);
    fixture_close(&whole);
    open_scene(&whole, dims, NULL, now, &all);
    open_scene(&cut, dims, ranks, now, &one);
    for (int i = 0; i < consumers; i++)
        rows[i] = fixture_row(&whole, now->rows[i % 4], ROW_DOCS, true);
    double want = run_rows(&whole, rows, consumers);
    double got = run_rows(&cut, &rows[ranks->place.consumer], 1);
    sum_gradients(&cut);
    double error = compare_fixtures(&cut, &whole, &name), loss = fabs(got - want) / fabs(want);
    if (!(error <= limit) || !(loss <= limit)) {
        log_error("layout %s, %s, rank %d: gradient of %s is off by %.2e, the loss by %.2e", text,
                  now->name, ranks->rank, name, error, loss);
        failures++;
    } else if (ranks->rank == 0) {
        printf("%-12s %-26s gradients within %.1e (%s), loss %.1e\n", text, now->name, error, name,
               loss);
    }
    fixture_close(&cut);
    fixture_close(&whole);
}

static layout read_layout(const char *text, int ranks)
{
    int numbers[5];
    if (sscanf(text, "%d.%d.%d.%d.%d", &numbers[0], &numbers[1], &numbers[2], &numbers[3],
               &numbers[4]) != 5 ||
        ranks % (numbers[0] * numbers[1] * numbers[2]) != 0) {
        log_error("%s is no layout of %d ranks", text, ranks);
        exit(1);
    }
    return (layout){.replicate = ranks / (numbers[0] * numbers[1] * numbers[2]),
                    .shard = numbers[0],
                    .context = numbers[1],
                    .tensor = numbers[2],
                    .pipeline = 1,
                    .expert = numbers[3],
                    .expert_tensor = numbers[4],
                    .world = ranks,
                    .accumulation = 1};
}

int main(int argc, char **argv)
{
    conf options;
    world job;
    model_dims dims;
    int no_arguments = 1;
    MUST(conf_load(&options, &no_arguments, argv));
    log_init("ranks", LOG_WARN, false);
    MUST(world_open(&options, &job));
    MUST(dims_preset(argv[1], &dims));
    for (int i = 3; i < argc; i++) {
        layout degrees = read_layout(argv[i], job.place.size);
        mesh ranks;
        MUST(mesh_open(&degrees, job.place.rank, job.engine, job.joined, NULL, &ranks));
        for (size_t k = 0; k < sizeof scenes / sizeof *scenes; k++)
            check_scene(&dims, &ranks, &scenes[k], strtod(argv[2], NULL), argv[i]);
        mesh_close(&ranks);
    }
    MUST(world_close(&job, failures ? FAIL(ST_INTERNAL, "%d scenes differ", failures) : ST_OK));
    conf_done(&options);
    return 0;
}
