/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.c: the small model and the rows of fixture.h. Letters: x, y a place on the grid. */
#include "tests/unit/trainer/model/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/model/layers/pass_context.h"
#include "trainer/ops/open.h"

const document debug_documents[3] = {{"4 1x4x6 3 1x6x4 2", 11}, {"3 v2x4x4 2 + 2", 22}, {"10", 33}};

static double lively(const param *weight, rng_key key, int64_t index)
{
    double drawn = rng_normal(key, (uint64_t)index);
    if (weight->init == INIT_ONE)
        return 1 + 0.2 * drawn;
    if (weight->init == INIT_ZERO)
        return 0.2 * drawn;
    if (weight->group == GROUP_EXPERTS)
        return drawn / sqrt((double)weight->shape[1]);
    if (strstr(weight->name, "embed") && weight->n_dims == 2) /* the token and position tables */
        return 0.7 * drawn;
    return drawn / sqrt((double)(weight->count / weight->shape[0]));
}

static void fill_params(fixture *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        rng_key key = rng_key_make(5, weight->name);
        double *values = malloc((size_t)weight->n_local * sizeof *values);
        assert_non_null(values);
        for (int64_t j = 0, at; j < weight->n_local; j++) {
            slice_run(&weight->held, j, 1, &at);
            values[j] = lively(weight, key, at);
        }
        assert_ok(params_write(weight, setup->queue, 0, weight->n_local, values));
        free(values);
    }
}

void fixture_alloc_anew(fixture *setup)
{
    params_release(setup->registry, setup->queue);
    assert_ok(params_alloc(setup->registry, setup->queue, true));
    fill_params(setup);
}

void fixture_open(fixture *setup, const model_dims *dims)
{
    fixture_open_rank(setup, dims, NULL);
}

void fixture_open_rank(fixture *setup, const model_dims *dims, const mesh *ranks)
{
    *setup = (fixture){.dims = *dims, .mesh = ranks};
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    assert_ok(params_new(&setup->dims, &setup->registry));
    if (ranks)
        assert_ok(params_cut(setup->registry, &setup->dims, &ranks->layout, ranks->place));
    assert_ok(params_alloc(setup->registry, setup->queue, true));
    fill_params(setup);
    void *sums[3];
    for (int i = 0; i < 3; i++)
        assert_ok(setup->dev->backend->alloc(setup->dev, sizeof(double), &sums[i]));
    setup->sums = (loss_sums){sums[0], sums[1], sums[2]};
    arena_init(&setup->rows, 0);
}

void fixture_close(fixture *setup)
{
    model_free(&setup->net, setup->queue);
    stager_free(&setup->staging, setup->queue);
    params_release(setup->registry, setup->queue);
    params_free(&setup->registry);
    setup->dev->backend->release(setup->dev, setup->sums.loss);
    setup->dev->backend->release(setup->dev, setup->sums.weight);
    setup->dev->backend->release(setup->dev, setup->sums.aux);
    arena_done(&setup->rows);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

void fixture_model(fixture *setup, const model_options *options, bool fixed_shapes)
{
    model_free(&setup->net, setup->queue);
    stager_free(&setup->staging, setup->queue);
    row_share share = setup->mesh ? row_share_of(setup->mesh) : row_share_alone();
    setup->options = *options;
    setup->options.mesh = setup->mesh;
    assert_ok(model_new(setup->queue, &setup->dims, setup->registry, &setup->options, &setup->net));
    assert_ok(
        stager_new_shared(setup->queue, &setup->dims, &options->cap, &share, &setup->staging));
    stager_mark(setup->staging, 0, options->router_aux_coef);
    stager_fix_shapes(setup->staging, fixed_shapes);
}

/* One word of a document's description. */
typedef struct part {
    int frames, height, width; /* a grid; frames = 0: height tokens of text, or one more frame */
    bool video, next_frame;
} part;

static bool read_part(const char **text, part *out)
{
    while (**text == ' ')
        ++*text;
    *out = (part){0};
    if (**text == 0)
        return false;
    char word[32];
    size_t length = strcspn(*text, " ");
    assert_true(length < sizeof word);
    memcpy(word, *text, length);
    word[length] = 0;
    *text += length;
    out->video = word[0] == 'v';
    out->next_frame = word[0] == '+';
    if (!out->next_frame &&
        sscanf(word + out->video, "%dx%dx%d", &out->frames, &out->height, &out->width) != 3) {
        out->height = atoi(word);
        out->frames = 0;
    }
    return true;
}

/* Writes documents into `packed`, or only counts what they need. */
typedef struct writer {
    row *packed;
    const model_dims *dims;
    bool write;
    int64_t tokens, items, patches, video_patches, merged;
} writer;

static void put_token(writer *into, int32_t id, int32_t visual, const int32_t position[3])
{
    if (into->write) {
        into->packed->input_ids[into->tokens] = id;
        into->packed->visual_row[into->tokens] = visual;
        for (int axis = 0; axis < 3; axis++)
            into->packed->position_ids[axis * into->packed->n_tokens + into->tokens] =
                position[axis];
    }
    into->tokens++;
}

static void put_frame(writer *into, const part *grid, bool video, int32_t *cur)
{
    for (int32_t y = 0; y < grid->height / 2; y++)
        for (int32_t x = 0; x < grid->width / 2; x++)
            put_token(into, video ? into->dims->video_token : into->dims->image_token,
                      (int32_t)into->merged++, (int32_t[]){*cur, *cur + y, *cur + x});
    *cur += (grid->height > grid->width ? grid->height : grid->width) / 2;
}

/* `item` counts from the start of the document, so that a document has the same pixels in any
 * row. */
static void put_pixels(writer *into, const part *grid, bool video, rng_key key, uint64_t item)
{
    int64_t patches = (int64_t)grid->frames * grid->height * grid->width;
    int64_t at = video ? into->video_patches : into->patches;
    int64_t bytes = video ? VIDEO_PATCH_BYTES : PATCH_BYTES;
    if (into->write) {
        uint8_t *to = (video ? into->packed->pixels_video : into->packed->pixels) + at * bytes;
        for (int64_t i = 0; i < patches * bytes; i++)
            to[i] = (uint8_t)rng_below(key, item * 1000000 + (uint64_t)i, 256);
        int32_t *triple = into->packed->grid_thw + 3 * into->items;
        triple[0] = grid->frames;
        triple[1] = grid->height;
        triple[2] = grid->width;
    }
    *(video ? &into->video_patches : &into->patches) += patches;
    into->items++;
}

static void put_document(writer *into, const document *doc)
{
    rng_key key = rng_key_make(doc->seed, "document");
    const char *text = doc->text;
    int32_t cur = 0;
    part now, grid = {0};
    for (uint64_t placed = 0, item = 0; read_part(&text, &now);) {
        if (now.next_frame) {
            put_frame(into, &grid, true, &cur);
        } else if (now.frames > 0) {
            grid = now;
            put_pixels(into, &grid, now.video, key, item++);
            put_frame(into, &grid, now.video, &cur);
        } else {
            for (int i = 0; i < now.height; i++, cur++)
                put_token(into, (int32_t)rng_below(key, placed++, 1900) + 3, -1,
                          (int32_t[]){cur, cur, cur});
        }
    }
}

/* Gives labels to three quarters of the text tokens, never to the first token of a document. */
static void put_labels(row *packed, int64_t doc, uint64_t seed)
{
    rng_key key = rng_key_make(seed, "labels");
    for (int64_t token = packed->cu_seqlens[doc] + 1; token < packed->cu_seqlens[doc + 1];
         token++) {
        uint64_t number = (uint64_t)(token - packed->cu_seqlens[doc]);
        if (packed->loss_weight)
            packed->loss_weight[token] = (float)(0.5 + rng_uniform(key, 1000 + number));
        if (packed->visual_row[token] < 0 && rng_below(key, number, 4) > 0)
            packed->labels[token] = packed->input_ids[token];
    }
}

row fixture_row(fixture *setup, const document *docs, int total, bool weights)
{
    row packed = {.n_docs = total};
    writer count = {.packed = &packed, .dims = &setup->dims};
    for (int i = 0; i < total; i++)
        put_document(&count, &docs[i]);
    packed.n_tokens = count.tokens;
    packed.n_items = count.items;
    packed.n_patches = count.patches;
    packed.n_video_patches = count.video_patches;
    assert_ok(row_alloc(&packed, &setup->rows, weights ? ROW_WEIGHTS : 0));
    writer into = {.packed = &packed, .dims = &setup->dims, .write = true};
    for (int i = 0; i < total; i++) {
        put_document(&into, &docs[i]);
        packed.cu_seqlens[i + 1] = (int32_t)into.tokens;
        packed.doc_sample_id[i] = docs[i].seed;
        put_labels(&packed, i, docs[i].seed);
    }
    assert_ok(row_check(&packed, "fixture"));
    return packed;
}

static double read_double(fixture *setup, const void *memory)
{
    double value = 0;
    assert_ok(setup->dev->backend->to_host(setup->queue, &value, memory, sizeof value));
    assert_ok(setup->dev->backend->wait(setup->queue));
    return value;
}

double fixture_aux(fixture *setup)
{
    double value = 0;
    assert_ok(params_read(setup->sums.aux, setup->queue, 0, 1, &value));
    return value;
}

static device_batch *stage(fixture *setup, const row *rows, int64_t n_rows)
{
    device_batch *batch = NULL;
    assert_ok(stage_rows(setup->staging, setup->queue, rows, n_rows, &batch));
    assert_ok(setup->dev->backend->zero(setup->queue, setup->sums.loss, sizeof(double)));
    assert_ok(setup->dev->backend->zero(setup->queue, setup->sums.weight, sizeof(double)));
    return batch;
}

static double loss_of(fixture *setup, const device_batch *batch)
{
    double loss = read_double(setup, setup->sums.loss);
    assert_true(fabs(read_double(setup, setup->sums.weight) - batch->weight) <=
                1e-6 * batch->weight);
    if (setup->options.router_aux_coef > 0)
        loss += setup->options.router_aux_coef * batch->weight * fixture_aux(setup);
    return loss;
}

double fixture_forward_backward(fixture *setup, const row *rows, int64_t n_rows)
{
    device_batch *batch = stage(setup, rows, n_rows);
    assert_ok(params_zero_grad(setup->registry, setup->queue));
    assert_ok(model_forward_backward(setup->net, setup->queue, batch, &setup->sums));
    return loss_of(setup, batch);
}

double fixture_forward(fixture *setup, const row *rows, int64_t n_rows)
{
    device_batch *batch = stage(setup, rows, n_rows);
    assert_ok(model_forward(setup->net, setup->queue, batch, &setup->sums, NULL, NULL));
    return loss_of(setup, batch);
}

double *fixture_grad(fixture *setup, const param *weight)
{
    double *grad = malloc((size_t)weight->n_local * sizeof *grad);
    assert_non_null(grad);
    assert_ok(params_read(weight->grad, setup->queue, 0, weight->n_local, grad));
    return grad;
}
