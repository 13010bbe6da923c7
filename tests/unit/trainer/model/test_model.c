/* SPDX-License-Identifier: Apache-2.0 */
/* test_model.c: the whole model in float. The same documents give the same loss and gradients
 * however they are divided into batches. Corner cases: no picture, a picture larger than the
 * position table, an expert without tokens, a row without targets, a pad token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/ops/table.h"

/* Limit on |first - second| / |second| of a tensor's gradient. Rounding in float through ten layers
 * gives 2e-7 to 3e-6; a wrong mask or border would give something of order 1. */
static const double rounding = 1e-5;

typedef struct result {
    double loss;
    double **grad; /* [count] */
    int64_t count;
} result;

static result run_rows(fixture *setup, const row *rows, int64_t n_rows)
{
    result got = {.loss = fixture_forward_backward(setup, rows, n_rows),
                  .count = setup->registry->count};
    got.grad = calloc((size_t)got.count, sizeof *got.grad);
    for (int64_t i = 0; i < got.count; i++)
        got.grad[i] = fixture_grad(setup, &setup->registry->list[i]);
    return got;
}

static void result_add(result *to, const result *from, const fixture *setup)
{
    to->loss += from->loss;
    for (int64_t i = 0; i < to->count; i++)
        for (int64_t j = 0; j < setup->registry->list[i].count; j++)
            to->grad[i][j] += from->grad[i][j];
}

static void result_done(result *got)
{
    for (int64_t i = 0; i < got->count; i++)
        free(got->grad[i]);
    free(got->grad);
}

static double measure_difference(const double *first, const double *second, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (first[i] - second[i]) * (first[i] - second[i]);
        size += second[i] * second[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static void assert_same(const fixture *setup, const result *first, const result *second,
                        double tolerance)
{
    double worst = fabs(first->loss - second->loss) / fabs(second->loss);
    const char *name = "loss";
    for (int64_t i = 0; i < setup->registry->count; i++) {
        double difference =
            measure_difference(first->grad[i], second->grad[i], setup->registry->list[i].count);
        if (!(difference <= worst)) {
            worst = difference;
            name = setup->registry->list[i].name;
        }
    }
    print_message("largest difference %.2g in %s\n", worst, name);
    if (!(worst <= tolerance))
        fail_msg("%s differs by %.3g, allowed %.3g", name, worst, tolerance);
}

static void open_debug(fixture *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(setup, &dims);
}

static model_options options_for(const row *rows, int64_t count, int64_t token_step,
                                 int64_t patch_step)
{
    model_options options = {.training = true};
    batch_caps_for(rows, count, token_step, patch_step, &options.cap);
    return options;
}

/* The three documents packed in one row, in three micro-batches, as three rows of one micro-batch,
 * and padded to a larger bucket with every op running on capacities. */
static void test_model__packed_unpacked_and_padded_agree(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    row single[3];
    for (int i = 0; i < 3; i++)
        single[i] = fixture_row(&setup, &debug_documents[i], 1, true);

    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result want = run_rows(&setup, &packed, 1);
    result rows = run_rows(&setup, single, 3);
    assert_same(&setup, &rows, &want, rounding);
    result sum = run_rows(&setup, &single[0], 1);
    for (int i = 1; i < 3; i++) {
        result one = run_rows(&setup, &single[i], 1);
        result_add(&sum, &one, &setup);
        result_done(&one);
    }
    assert_same(&setup, &sum, &want, rounding);

    options = options_for(&packed, 1, 64, 128);
    options.cap.docs += 3;
    options.cap.frames += 2;
    options.cap.targets += 9;
    options.logit_rows = 8;
    fixture_model(&setup, &options, true);
    result padded = run_rows(&setup, &packed, 1);
    assert_same(&setup, &padded, &want, rounding);

    row reversed = fixture_row(
        &setup, (const document[]){debug_documents[2], debug_documents[1], debug_documents[0]}, 3,
        true);
    result other = run_rows(&setup, &reversed, 1);
    assert_same(&setup, &other, &want, rounding);
    result_done(&want);
    result_done(&rows);
    result_done(&sum);
    result_done(&padded);
    result_done(&other);
    fixture_close(&setup);
}

/* The same input gives the same bits, whatever the buffers held before. */
static void test_model__step_depends_on_nothing_left_in_memory(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row big = fixture_row(&setup, debug_documents, 3, false);
    row text = fixture_row(&setup, (const document[]){{"7", 3}, {"9", 4}}, 2, false);
    model_options options = options_for(&big, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result first = run_rows(&setup, &text, 1);
    result other = run_rows(&setup, &big, 1);
    result second = run_rows(&setup, &text, 1);
    assert_same(&setup, &second, &first, 0);
    result_done(&first);
    result_done(&other);
    result_done(&second);
    fixture_close(&setup);
}

static double size_of(const fixture *setup, const result *got, const char *name)
{
    const param *weight = params_find(setup->registry, name);
    assert_non_null(weight);
    double sum = 0;
    for (int64_t j = 0; j < weight->count; j++)
        sum += got->grad[weight - setup->registry->list][j] *
               got->grad[weight - setup->registry->list][j];
    return sqrt(sum);
}

static void test_model__no_image_gives_no_vision_gradient(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, &(const document){"12", 5}, 1, false);
    model_options options = options_for(&packed, 1, 1, 4);
    assert_int_equal(options.cap.patches, 0);
    fixture_model(&setup, &options, false);
    result without = run_rows(&setup, &packed, 1);
    assert_true(size_of(&setup, &without, "model.visual.blocks.0.norm1.weight") == 0);
    assert_true(size_of(&setup, &without, "lm_head.weight") > 0);
    options.cap.patches = 16; /* the same text in a batch with room for pictures */
    options.cap.frames = 2;
    fixture_model(&setup, &options, true);
    result padded = run_rows(&setup, &packed, 1);
    assert_same(&setup, &padded, &without, rounding);
    result_done(&without);
    result_done(&padded);
    fixture_close(&setup);
}

/* A picture of 20 x 12 patches on the debug model's position table of 8 x 8. */
static void test_model__image_beyond_the_position_table(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, &(const document){"3 1x20x12 6", 6}, 1, false);
    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result got = run_rows(&setup, &packed, 1);
    assert_true(isfinite(got.loss));
    const param *table = params_find(setup.registry, "model.visual.pos_embed.weight");
    const double *grad = got.grad[table - setup.registry->list];
    int64_t touched = 0;
    for (int64_t i = 0; i < 64; i++)
        for (int64_t j = 0; j < 64; j++)
            touched += grad[i * 64 + j] != 0;
    assert_int_equal(touched, 64 * 64); /* a larger picture uses every entry */
    result_done(&got);
    fixture_close(&setup);
}

/* Three tokens with four choices each cannot use all of sixteen experts. */
static void test_model__expert_without_tokens(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, &(const document){"3", 7}, 1, false);
    packed.labels[1] = 5;
    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result got = run_rows(&setup, &packed, 1);
    const int32_t *count = model_expert_count(setup.net);
    const param *weight =
        params_find(setup.registry, "model.language_model.layers.2.mlp.experts.gate_up_proj");
    const double *grad = got.grad[weight - setup.registry->list];
    int64_t each = weight->count / 16, empty = 0, slots = 0;
    for (int64_t expert = 0; expert < 16; expert++) {
        double size = 0;
        for (int64_t j = 0; j < each; j++)
            size += fabs(grad[expert * each + j]);
        slots += count[2 * 16 + expert];
        empty += count[2 * 16 + expert] == 0;
        assert_true(isfinite(size));
        if (count[2 * 16 + expert] == 0)
            assert_true(size == 0);
    }
    assert_int_equal(slots, 3 * 4);
    assert_true(empty >= 4);
    result_done(&got);
    fixture_close(&setup);
}

static void test_model__no_target_is_loss_zero(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, false), empty = {0};
    for (int64_t token = 0; token < packed.n_tokens; token++)
        packed.labels[token] = NO_LABEL;
    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result got = run_rows(&setup, &packed, 1);
    assert_true(got.loss == 0);
    for (int64_t i = 0; i < setup.registry->count; i++)
        assert_true(size_of(&setup, &got, setup.registry->list[i].name) == 0);
    result none = run_rows(&setup, &empty, 1); /* such a row fills up the last step of a run */
    assert_true(none.loss == 0);
    result_done(&got);
    result_done(&none);
    fixture_close(&setup);
}

/* nll, best and logits of a forward agree with each other and with the loss. */
static void test_model__forward_outputs_agree(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    model_options options = options_for(&packed, 1, 1, 4);
    options.training = false;
    options.logit_rows = 5;
    fixture_model(&setup, &options, false);
    device_batch *batch = NULL;
    void *nll, *best, *logits;
    int64_t vocab = setup.dims.text.vocab, targets = options.cap.targets;
    assert_ok(setup.dev->backend->alloc(setup.dev, (size_t)targets * sizeof(float), &nll));
    assert_ok(setup.dev->backend->alloc(setup.dev, (size_t)targets * sizeof(int32_t), &best));
    assert_ok(
        setup.dev->backend->alloc(setup.dev, (size_t)(targets * vocab) * sizeof(float), &logits));
    assert_ok(stage_rows(setup.staging, setup.queue, &packed, 1, &batch));
    assert_ok(setup.dev->backend->zero(setup.queue, setup.sums.loss, sizeof(double)));
    assert_ok(model_forward(setup.net, setup.queue, batch, &setup.sums, nll, best));
    assert_ok(model_logits(setup.net, setup.queue, batch->target_token, batch->targets, logits));
    double sum = 0;
    for (int64_t i = 0; i < batch->targets; i++) {
        const float *scores = (const float *)logits + i * vocab;
        int64_t top = 0;
        double total = 0;
        for (int64_t j = 0; j < vocab; j++)
            top = scores[j] > scores[top] ? j : top;
        for (int64_t j = 0; j < vocab; j++)
            total += exp((double)scores[j] - scores[top]);
        double want = log(total) + scores[top] - scores[batch->target_label[i]];
        assert_true(fabs(((float *)nll)[i] - want) < 1e-4);
        assert_int_equal(((int32_t *)best)[i], top);
        sum += want * ((float *)batch->target_weight)[i];
    }
    assert_true(fabs(*setup.sums.loss - sum) < 1e-5 * sum);
    setup.dev->backend->release(setup.dev, nll);
    setup.dev->backend->release(setup.dev, best);
    setup.dev->backend->release(setup.dev, logits);
    options.training = true; /* training must give the same loss */
    fixture_model(&setup, &options, false);
    assert_true(fabs(fixture_forward_backward(&setup, &packed, 1) - sum) < 1e-5 * sum);
    fixture_close(&setup);
}

/* Two documents that share a picture (data.group shared_image) compute as if each had its own. */
static void test_model__shared_visual_rows(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    const document twice[2] = {{"3 1x4x4 5", 8}, {"3 1x4x4 5", 8}};
    row two = fixture_row(&setup, twice, 2, false);
    row shared = two;
    int32_t visual[64];
    memcpy(visual, two.visual_row, (size_t)two.n_tokens * sizeof *visual);
    for (int64_t token = two.cu_seqlens[1]; token < two.n_tokens; token++)
        visual[token] = visual[token] >= 0 ? visual[token] - 4 : -1;
    shared.visual_row = visual;
    shared.n_items = 1;
    shared.n_patches = 16;
    memcpy(two.pixels + 16 * PATCH_BYTES, two.pixels, 16 * PATCH_BYTES);
    model_options options = options_for(&two, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result want = run_rows(&setup, &two, 1);
    result got = run_rows(&setup, &shared, 1);
    assert_same(&setup, &got, &want, rounding);
    result_done(&want);
    result_done(&got);
    fixture_close(&setup);
}

static void test_model__text_only(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.vision = (vision_dims){0};
    memset(dims.text.mrope_section, 0, sizeof dims.text.mrope_section);
    fixture_open(&setup, &dims);
    row packed = fixture_row(&setup, (const document[]){{"9", 1}, {"17", 2}}, 2, false);
    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(&setup, &options, false);
    result got = run_rows(&setup, &packed, 1);
    assert_true(isfinite(got.loss) && got.loss > 0);
    assert_true(size_of(&setup, &got, "model.layers.0.self_attn.q_norm.weight") > 0);
    result_done(&got);
    fixture_close(&setup);
}

/* What attention was called with, for one direction. */
typedef struct asked {
    int64_t tokens, segments, longest, calls;
} asked;

static asked heard[2][2]; /* [backward][causal] */

static void note_attention(bool backward, const attention_fwd_args *args)
{
    asked *seen = &heard[backward][args->causal];
    const asked now = {args->tokens, args->segments, args->longest, seen->calls + 1};
    if (seen->calls)
        assert_true(seen->tokens == now.tokens && seen->segments == now.segments &&
                    seen->longest == now.longest);
    *seen = now;
}

static status hear_fwd(stream *queue, const attention_fwd_args *args)
{
    note_attention(false, args);
    return queue->dev->ops->attention_fwd(queue, args);
}

static status hear_bwd(stream *queue, const attention_bwd_args *args)
{
    note_attention(true, &(attention_fwd_args){.tokens = args->tokens,
                                               .segments = args->segments,
                                               .longest = args->longest,
                                               .causal = args->causal});
    return queue->dev->ops->attention_bwd(queue, args);
}

/* The bounds of a bucket reach attention in both directions, because cuDNN's choice of kernel
 * depends on them. */
static void test_model__attention_is_bounded_in_both_directions(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, false);
    model_options options = options_for(&packed, 1, 64, 128);
    options.cap.docs += 3;
    options.cap.frames += 2;
    fixture_model(&setup, &options, true);
    batch_caps bucket = options.cap;
    bucket.longest = 40;
    bucket.frame = 24;
    stager_bucket(setup.staging, &bucket, 1);
    ops_table listening = *setup.dev->ops;
    listening.attention_fwd = hear_fwd;
    listening.attention_bwd = hear_bwd;
    setup.queue->ops = &listening;
    memset(heard, 0, sizeof heard);
    fixture_forward_backward(&setup, &packed, 1);
    setup.queue->ops = setup.dev->ops;
    for (int backward = 0; backward < 2; backward++) {
        const asked *text = &heard[backward][true], *vision = &heard[backward][false];
        assert_int_equal(text->calls, setup.dims.text.layers);
        assert_int_equal(text->tokens, bucket.tokens);
        assert_int_equal(text->segments, bucket.docs);
        assert_int_equal(text->longest, bucket.longest);
        assert_int_equal(vision->calls, setup.dims.vision.depth);
        assert_int_equal(vision->tokens, bucket.patches);
        assert_int_equal(vision->segments, bucket.frames);
        assert_int_equal(vision->longest, bucket.frame);
    }
    fixture_close(&setup);
}

/* Runs the debug model, with its head tied or only equal to the embedding, and with or without a
 * pad token. */
static result run_with_pad(bool tied, bool has_pad, int64_t *inout_token, fixture *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.text.tied = tied;
    dims.text.has_pad = has_pad;
    dims.text.pad_token = *inout_token;
    fixture_open(setup, &dims);
    const param *embedding =
        params_get(setup->registry, "%sembed_tokens.weight", setup->registry->text_prefix);
    if (!tied) {
        double *values = malloc((size_t)embedding->count * sizeof *values);
        assert_non_null(values);
        assert_ok(params_read(embedding->value, setup->queue, 0, embedding->count, values));
        assert_ok(params_write(params_get(setup->registry, "lm_head.weight"), setup->queue, 0,
                               embedding->count, values));
        free(values);
    }
    row packed = fixture_row(setup, debug_documents, 3, false);
    *inout_token = packed.input_ids[0];
    model_options options = options_for(&packed, 1, 1, 4);
    fixture_model(setup, &options, false);
    return run_rows(setup, &packed, 1);
}

static const double *grad_of(const fixture *setup, const result *got, const char *name,
                             int64_t line)
{
    for (int64_t i = 0; i < got->count; i++)
        if (strstr(setup->registry->list[i].name, name))
            return got->grad[i] + line * setup->dims.text.hidden;
    fail_msg("no %s", name);
    return NULL;
}

/* The embedding of a pad token gets no gradient from the tokens that show it; if the head is tied,
 * it still gets the head's. Nothing else changes. */
static void test_model__pad_token_gets_no_gradient(void **state)
{
    (void)state;
    fixture setups[4];
    result got[4];
    int64_t pad = 0;
    for (int i = 0; i < 4; i++) /* untied and tied, each without and with a pad token */
        got[i] = run_with_pad(i >= 2, i % 2, &pad, &setups[i]);
    const int64_t hidden = setups[0].dims.text.hidden;
    const double *head = grad_of(&setups[0], &got[0], "lm_head", pad);
    for (int i = 0; i < 4; i += 2) {
        const double *without = grad_of(&setups[i], &got[i], "embed_tokens", pad);
        double *with = (double *)grad_of(&setups[i + 1], &got[i + 1], "embed_tokens", pad);
        double zero[256] = {0};
        assert_true(hidden <= 256);
        assert_true(measure_difference(without, i ? head : zero, hidden) > 0.01);
        assert_true(measure_difference(with, i ? head : zero, hidden) <= (i ? rounding : 0));
        memcpy(with, without, (size_t)hidden * sizeof *with);
        assert_same(&setups[i], &got[i + 1], &got[i], 0);
    }
    for (int i = 0; i < 4; i++) {
        result_done(&got[i]);
        fixture_close(&setups[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__packed_unpacked_and_padded_agree),
        cmocka_unit_test(test_model__step_depends_on_nothing_left_in_memory),
        cmocka_unit_test(test_model__no_image_gives_no_vision_gradient),
        cmocka_unit_test(test_model__image_beyond_the_position_table),
        cmocka_unit_test(test_model__expert_without_tokens),
        cmocka_unit_test(test_model__no_target_is_loss_zero),
        cmocka_unit_test(test_model__forward_outputs_agree),
        cmocka_unit_test(test_model__shared_visual_rows),
        cmocka_unit_test(test_model__text_only),
        cmocka_unit_test(test_model__pad_token_gets_no_gradient),
        cmocka_unit_test(test_model__attention_is_bounded_in_both_directions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
