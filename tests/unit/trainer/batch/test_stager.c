/* SPDX-License-Identifier: Apache-2.0 */
/* test_stager.c: how rows become a batch in device memory: the borders of documents and frames, the
 * order of merged patches, rows and weights of the position table (trainer/model/equations.md,
 * "Vision tower"), targets and padding. Rows that cannot be staged are refused with the sample's
 * id. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/batch/batch_caps.h"

static void open_staged(fixture *setup, const row *rows, int64_t count, int64_t steps,
                        device_batch **out)
{
    model_options options = {.training = false};
    batch_caps_for(rows, count, steps, 4 * steps, &options.cap);
    fixture_model(setup, &options, steps > 1);
    assert_ok(stage_rows(setup->staging, setup->queue, rows, count, out));
}

static void open_debug(fixture *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(setup, &dims);
}

/* On the CPU the test can read device memory. */
static void test_stager__spec_batch(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    open_debug(&setup);
    row rows[2] = {fixture_row(&setup, debug_documents, 2, true),
                   fixture_row(&setup, &debug_documents[2], 1, true)};
    open_staged(&setup, rows, 2, 1, &batch);
    assert_int_equal(batch->tokens, 46);
    assert_int_equal(batch->docs, 3);
    assert_int_equal(batch->patches, 80);
    const int32_t cu[] = {0, 21, 36, 46}, frames[] = {0, 24, 48, 64, 80};
    assert_memory_equal(batch->cu_docs, cu, sizeof cu);
    assert_memory_equal(batch->cu_frames, frames, sizeof frames);
    const int32_t merge_order[] = {0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1,
                                   2, 1, 3, 0, 4, 0, 5, 1, 4, 1, 5, 2, 0};
    assert_memory_equal(batch->patch_row_col, merge_order, sizeof merge_order);
    const int32_t t_stream[] = {0,  1,  2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9, 10, 10, 10, 10, 10, 10,
                                13, 14, 0, 1, 2, 3, 3, 3, 3, 5, 6, 7, 7, 7,  7,  9,  10, 0,  1};
    const int32_t h_stream[] = {0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9, 10, 10, 11, 11, 12, 12, 13};
    const int32_t w_stream[] = {0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11, 10, 11, 13};
    assert_memory_equal(batch->positions, t_stream, sizeof t_stream);
    assert_memory_equal(batch->positions + 46, h_stream, sizeof h_stream);
    assert_memory_equal(batch->positions + 92, w_stream, sizeof w_stream);
    assert_true(batch->wide && batch->visual_distinct);
    int64_t visual = 0;
    for (int64_t token = 0; token < 46; token++) {
        assert_true((batch->visual_index[token] >= 0) == (batch->text_index[token] < 0));
        if (batch->visual_index[token] >= 0)
            assert_int_equal(batch->visual_index[token], visual++);
    }
    assert_int_equal(visual, 20);
    double weight = 0;
    int32_t replies = 0;
    for (int64_t i = 0; i < batch->targets; i++) {
        int32_t token = batch->target_token[i] + 1;
        assert_int_equal(batch->target_label[i], batch->input_ids[token]);
        const int32_t before = i > 0 ? batch->target_token[i - 1] + 1 : -1;
        bool begins = i == 0 || before + 1 != token;
        for (int64_t doc = 0; doc < batch->docs; doc++) {
            assert_int_not_equal(token, cu[doc]);
            begins |= before < cu[doc] && cu[doc] < token;
        }
        replies += begins;
        assert_int_equal(batch->host_target_reply[i], replies - 1);
        weight += ((float *)batch->target_weight)[i];
    }
    assert_true(fabs(weight - batch->weight) < 1e-4);
    assert_int_equal(batch->host_sample[2], 33);
    /* A still picture has one frame; made wide, both frames of a patch are that frame, in every
     * channel. */
    assert_memory_equal(batch->pixels_wide + 512, rows[0].pixels + 256, 256);
    assert_memory_equal(batch->pixels_wide + 768, rows[0].pixels + 256, 256);
    assert_memory_equal(batch->pixels_wide + 48 * VIDEO_PATCH_BYTES, rows[0].pixels_video,
                        32 * VIDEO_PATCH_BYTES);
    fixture_close(&setup);
}

/* Three weightings: every target counts 1, every document counts 1, or every document counts the
 * square root of the number of its targets. */
static void test_stager__weighting(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, false);
    double want[3] = {0};
    for (int64_t doc = 0; doc < 3; doc++) {
        int64_t count = 0;
        for (int64_t token = packed.cu_seqlens[doc]; token < packed.cu_seqlens[doc + 1]; token++)
            count += packed.labels[token] != NO_LABEL;
        assert_true(count > 1);
        want[WEIGHTING_TOKEN] += (double)count;
        want[WEIGHTING_SAMPLE] += 1;
        want[WEIGHTING_SQRT] += sqrt((double)count);
    }
    open_staged(&setup, &packed, 1, 1, &batch);
    assert_true(batch->weight == want[WEIGHTING_TOKEN]);
    for (int kind = WEIGHTING_SQRT; kind >= WEIGHTING_TOKEN; kind--) {
        double sum = 0;
        stager_weigh(setup.staging, kind);
        assert_ok(stage_rows(setup.staging, setup.queue, &packed, 1, &batch));
        assert_true(fabs(batch->weight - want[kind]) < 1e-12);
        for (int64_t i = 0; i < batch->targets; i++)
            sum += (double)((float *)batch->target_weight)[i];
        assert_true(fabs(sum - want[kind]) < 1e-5);
    }
    fixture_close(&setup);
}

/* The example of equations.md: grid 30 x 40 on a table of 48 x 48, patch (1, 2). */
static void test_stager__position_corners(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.vision.positions = 2304;
    fixture_open(&setup, &dims);
    row packed = fixture_row(&setup, &(const document){"2 1x30x40 2", 1}, 1, false);
    open_staged(&setup, &packed, 1, 1, &batch);
    int64_t patch = 0;
    while (batch->patch_row_col[2 * patch] != 1 || batch->patch_row_col[2 * patch + 1] != 2)
        patch++;
    const int32_t index[4] = {50, 51, 98, 99};
    const double weight[4] = {0.223696, 0.155615, 0.366048, 0.254642};
    for (int corner = 0; corner < 4; corner++) {
        assert_int_equal(batch->pos_index[4 * patch + corner], index[corner]);
        assert_true(fabs(((float *)batch->pos_weight)[4 * patch + corner] - weight[corner]) < 1e-6);
    }
    fixture_close(&setup);
}

static void test_stager__padding(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, false);
    open_staged(&setup, &packed, 1, 32, &batch);
    batch_caps caps = batch_sizes(batch);
    assert_int_equal(caps.tokens, 64);
    assert_int_equal(caps.patches, 128);
    assert_int_equal(batch->n_tokens[0], 46);
    for (int64_t token = 46; token < 64; token++)
        assert_true(batch->text_index[token] == -1 && batch->visual_index[token] == -1 &&
                    batch->input_ids[token] == 0);
    assert_int_equal(batch->positions[64 + 7], 5); /* the axes lie cap.tokens apart */
    assert_int_equal(batch->cu_docs[3], 46);
    row small = fixture_row(&setup, &debug_documents[2], 1, false);
    assert_ok(stage_rows(setup.staging, setup.queue, &small, 1,
                         &batch)); /* nothing of the larger batch remains */
    for (int64_t doc = 1; doc <= 3; doc++)
        assert_int_equal(batch->cu_docs[doc], 10);
    for (int64_t i = batch->targets; i < batch->cap.targets; i++)
        assert_true(batch->target_label[i] == -1 && batch->target_token[i] == -1);
    for (int64_t frame = 0; frame <= batch->cap.frames; frame++)
        assert_int_equal(batch->cu_frames[frame], 0);
    fixture_close(&setup);
}

/* A batch gets the smallest bucket whose every capacity holds the rows; if no bucket does, it gets
 * the capacities of the buffers. */
static void test_stager__buckets(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    open_debug(&setup);
    row all = fixture_row(&setup, debug_documents, 3, false);
    row last = fixture_row(&setup, &debug_documents[2], 1, false); /* ten tokens of text */
    const row two[2] = {last, last};
    model_options options = {.training = false};
    batch_caps_for(&all, 1, 1, 4, &options.cap);
    const batch_caps small = {.tokens = 24, .docs = 2, .targets = 22, .longest = 10};
    batch_caps tight[2] = {small, options.cap};
    tight[1].longest = 20; /* the longest document has 21 tokens */
    fixture_model(&setup, &options, true);
    stager_bucket(setup.staging, tight, 2);
    assert_ok(stage_rows(setup.staging, setup.queue, two, 2, &batch));
    batch_caps caps = batch_sizes(batch);
    assert_memory_equal(&caps, &small, sizeof caps);
    assert_int_equal(batch->tokens, 20);
    assert_int_equal(batch->longest, 10);
    assert_int_equal(batch->positions[24 + 12], 2); /* the axes lie the bucket's tokens apart */
    assert_int_equal(batch->cu_docs[2], 20);
    const int32_t variant = batch->variant, *tokens = batch->input_ids;
    assert_ok(stage_rows(setup.staging, setup.queue, &all, 1, &batch));
    caps = batch_sizes(batch);
    assert_memory_equal(&caps, &options.cap, sizeof caps);
    assert_int_equal(batch->longest, 21);
    assert_int_equal(batch->frame, 24);
    assert_ptr_equal(batch->input_ids, tokens); /* a captured graph has these addresses */
    assert_true(batch->variant / 4 != variant / 4);
    tight[1].longest = 21;
    assert_ok(stage_rows(setup.staging, setup.queue, &all, 1, &batch));
    assert_int_equal(batch_sizes(batch).longest, 21);
    tight[0].targets = 1;
    assert_ok(stage_rows(setup.staging, setup.queue, two, 2, &batch));
    assert_int_equal(batch_sizes(batch).longest, 21);
    assert_ok(stage_rows(setup.staging, setup.queue, &last, 1, &batch));
    stager_bucket(setup.staging, NULL, 0);
    fixture_close(&setup);
}

static void welcome_list(const char *buckets, int64_t rows, bucket_list *out, status want,
                         const char *words)
{
    char text[1024];
    json_value *value;
    const batch_caps widest = {
        .tokens = 100, .docs = 26, .patches = 400, .items = 100, .frames = 100, .targets = 100};
    snprintf(text, sizeof text, "{\"buckets\":%s}", buckets);
    assert_ok(json_parse(text, strlen(text), "test", &value));
    if (want == ST_OK)
        assert_ok(bucket_list_read(value, rows, &widest, out));
    else
        assert_fails(want, bucket_list_read(value, rows, &widest, out), words);
    json_free(&value);
}

static void test_buckets__are_read_from_welcome(void **state)
{
    (void)state;
    bucket_list buckets;
#define TEXT(t, p, d, g, f)                                                                        \
    "{\"tokens\":" #t ",\"patches\":" #p ",\"documents\":" #d ",\"longest\":" #g                   \
    ",\"images\":3,\"frames\":" #f ",\"frame\":48,\"targets\":9}"
    welcome_list("[" TEXT(64, 99, 5, 30, 4) "," TEXT(100, 200, 60, 30, 4) "]", 2, &buckets, ST_OK,
                 NULL);
    assert_int_equal(buckets.count, 2);
    const batch_caps first = {.tokens = 128,
                              .docs = 10,
                              .patches = 200,
                              .items = 6,
                              .frames = 8,
                              .targets = 18,
                              .longest = 30,
                              .frame = 48};
    assert_memory_equal(&buckets.cap[0], &first, sizeof first);
    /* An older daemon names fewer bounds and a recording none; then the budgets bound the rest. */
    welcome_list("[{\"tokens\":64,\"patches\":8,\"documents\":5,\"longest\":30,\"images\":3}]", 1,
                 &buckets, ST_OK, NULL);
    assert_true(buckets.count == 1 && buckets.cap[0].targets == 64 &&
                buckets.cap[0].frames == 100 && !buckets.cap[0].frame);
    welcome_list("[]", 3, &buckets, ST_OK, NULL);
    assert_true(buckets.count == 1 && buckets.cap[0].tokens == 300 && buckets.cap[0].docs == 78 &&
                !buckets.cap[0].longest);
    welcome_list("null", 1, &buckets, ST_OK, NULL);
    assert_int_equal(buckets.count, 1);
    welcome_list("[" TEXT(101, 99, 5, 30, 4) "]", 1, &buckets, ST_PROTOCOL, "tokens 101");
    welcome_list("[" TEXT(64, 99, 5, -1, 4) "]", 1, &buckets, ST_PROTOCOL, "longest -1");
    welcome_list("[" TEXT(64, 99, 5, 30, 4) "," TEXT(64, 99, 4, 30, 4) "]", 1, &buckets,
                 ST_PROTOCOL, "documents 4, expected 5");
    welcome_list("[{}]", 1, &buckets, ST_BAD_INPUT, "tokens");
    welcome_list("[{},{},{},{},{},{},{},{},{}]", 1, &buckets, ST_PROTOCOL, "9 buckets");
#undef TEXT
}

static void test_stager__refuses_by_sample(void **state)
{
    (void)state;
    fixture setup;
    device_batch *batch;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, false);
    open_staged(&setup, &packed, 1, 1, &batch);
    row bad = packed;
    int32_t ids[64], labels[64], visual[64];
    size_t bytes = 46 * sizeof(int32_t);
#define FRESH()                                                                                    \
    do {                                                                                           \
        memcpy(ids, packed.input_ids, bytes);                                                      \
        memcpy(labels, packed.labels, bytes);                                                      \
        memcpy(visual, packed.visual_row, bytes);                                                  \
        bad.input_ids = ids;                                                                       \
        bad.labels = labels;                                                                       \
        bad.visual_row = visual;                                                                   \
    } while (0)
    FRESH();
    ids[40] = 2048;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "sample 33");
    FRESH();
    labels[41] = 5000;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "sample 33");
    FRESH();
    labels[batch->target_token[0] + 1] = NO_LABEL; /* room for one more */
    labels[21] = 7;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "no token before it");
    FRESH();
    visual[5] = -1;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "sample 11");
    FRESH();
    visual[5] = 99;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "visual row 99");
    FRESH();
    ids[5] = setup.dims.video_token;
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, &bad, 1, &batch),
                 "both image and video");
    FRESH();
    const row two[2] = {packed, packed};
    assert_fails(ST_BAD_INPUT, stage_rows(setup.staging, setup.queue, two, 2, &batch), "capacity");
    assert_ok(stage_rows(setup.staging, setup.queue, &bad, 1, &batch));
#undef FRESH
    fixture_close(&setup);
}

/* A rank's part of a row keeps its place when a large bucket follows a small one, and the parts of
 * four ranks make up the row, with nothing missing and nothing twice. */
static void test_stager__ranks_share_rows_in_buckets(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row small = fixture_row(&setup, &debug_documents[2], 1, true);
    row large = fixture_row(&setup, debug_documents, 3, true);
    batch_caps bucket[2] = {{0}, {0}};
    batch_caps_for(&small, 1, 1, 4, &bucket[0]);
    batch_caps_for(&large, 1, 1, 4, &bucket[1]);
    int64_t tokens = 0, patches = 0, targets = 0;
    for (int64_t rank = 0; rank < 4; rank++) {
        const row_share share = {
            .context = 2, .tensor = 2, .context_rank = rank / 2, .tensor_rank = rank % 2};
        stager *staging;
        device_batch *batch;
        assert_ok(stager_new_shared(setup.queue, &setup.dims, &bucket[1], &share, &staging));
        stager_bucket(staging, bucket, 2);
        for (int turn = 0; turn < 4; turn++) {
            const bool is_large = turn % 2;
            assert_ok(stage_rows(staging, setup.queue, is_large ? &large : &small, 1, &batch));
            assert_int_equal(batch->cap.tokens, (bucket[is_large].tokens + 3) / 4);
            assert_int_equal(batch->cap.patches, bucket[is_large].patches);
            assert_int_equal(batch->cu_frames[batch->frames], batch->patches);
        }
        tokens += *batch->n_tokens; /* on the CPU the test can read device memory */
        patches += batch->patches;
        targets += batch->targets;
        stager_free(&staging, setup.queue);
    }
    assert_int_equal(tokens, large.n_tokens);
    assert_int_equal(patches, large.n_patches + large.n_video_patches);
    int64_t want = 0;
    for (int64_t i = 0; i < large.n_tokens; i++)
        want += large.labels[i] != NO_LABEL;
    assert_int_equal(targets, want);
    fixture_close(&setup);
}

/* Pipeline stages after the first stage the same text as the first, but no patches, and keep no
 * room for them. */
static void test_stager__later_stages_have_only_text(void **state)
{
    (void)state;
    fixture setup;
    open_debug(&setup);
    row packed = fixture_row(&setup, debug_documents, 3, true);
    batch_caps cap = {0};
    batch_caps_for(&packed, 1, 1, 4, &cap);
    for (int64_t ranks = 1; ranks <= 2; ranks++) {
        const row_share seeing = {.context = ranks, .tensor = 1, .context_rank = ranks - 1};
        row_share blind = seeing;
        stager *staging[2];
        device_batch *batch[2];
        blind.blind = true;
        const row_share *const share[2] = {&seeing, &blind};
        for (int i = 0; i < 2; i++) {
            assert_ok(stager_new_shared(setup.queue, &setup.dims, &cap, share[i], &staging[i]));
            assert_ok(stage_rows(staging[i], setup.queue, &packed, 1, &batch[i]));
        }
        assert_true(batch[0]->patches > 0 && batch[0]->frames > 0);
        assert_int_equal(batch[1]->patches + batch[1]->frames, 0);
        assert_true(stager_bytes(&cap, &seeing, setup.dev->backend) -
                        stager_bytes(&cap, &blind, setup.dev->backend) >=
                    cap.patches * (PATCH_BYTES + VIDEO_PATCH_BYTES));
        assert_int_equal(batch[1]->tokens, batch[0]->tokens);
        assert_int_equal(batch[1]->targets, batch[0]->targets);
        assert_int_equal(batch[1]->feature_rows, batch[0]->feature_rows);
        const size_t tokens = (size_t)batch[0]->tokens * sizeof(int32_t);
        assert_memory_equal(batch[1]->input_ids, batch[0]->input_ids, tokens);
        assert_memory_equal(batch[1]->positions, batch[0]->positions, 3 * tokens);
        assert_memory_equal(batch[1]->visual_index, batch[0]->visual_index, tokens);
        for (int i = 0; i < 2; i++)
            stager_free(&staging[i], setup.queue);
    }
    fixture_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stager__spec_batch),
        cmocka_unit_test(test_stager__weighting),
        cmocka_unit_test(test_stager__position_corners),
        cmocka_unit_test(test_stager__padding),
        cmocka_unit_test(test_stager__buckets),
        cmocka_unit_test(test_buckets__are_read_from_welcome),
        cmocka_unit_test(test_stager__refuses_by_sample),
        cmocka_unit_test(test_stager__ranks_share_rows_in_buckets),
        cmocka_unit_test(test_stager__later_stages_have_only_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
