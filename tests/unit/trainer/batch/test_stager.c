/* test_stager.c: how rows become a batch in device memory: the borders of documents and frames, the
 * order of merged patches, rows and weights of the position table (trainer/model/equations.md,
 * "Vision tower"), targets and padding. Rows that cannot be staged are refused with the sample's
 * id. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/batch/shape_bucket.h"

static void open_staged(fixture *f, const row *rows, int64_t n, int64_t steps, device_batch **out)
{
    model_options o = {.training = false};
    batch_caps_for(rows, n, steps, 4 * steps, &o.cap);
    fixture_model(f, &o, steps > 1);
    assert_ok(stage_rows(f->g, f->s, rows, n, out));
}

static void open_debug(fixture *f)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(f, &d);
}

/* On the CPU the test can read device memory. */
static void test_stager__spec_batch(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    open_debug(&f);
    row rows[2] = {fixture_row(&f, debug_documents, 2, true),
                   fixture_row(&f, &debug_documents[2], 1, true)};
    open_staged(&f, rows, 2, 1, &b);
    assert_int_equal(b->tokens, 46);
    assert_int_equal(b->docs, 3);
    assert_int_equal(b->patches, 80);
    const int32_t cu[] = {0, 21, 36, 46}, frames[] = {0, 24, 48, 64, 80};
    assert_memory_equal(b->cu_docs, cu, sizeof cu);
    assert_memory_equal(b->cu_frames, frames, sizeof frames);
    const int32_t merge_order[] = {0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1,
                                   2, 1, 3, 0, 4, 0, 5, 1, 4, 1, 5, 2, 0};
    assert_memory_equal(b->patch_row_col, merge_order, sizeof merge_order);
    const int32_t t_stream[] = {0,  1,  2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9, 10, 10, 10, 10, 10, 10,
                                13, 14, 0, 1, 2, 3, 3, 3, 3, 5, 6, 7, 7, 7,  7,  9,  10, 0,  1};
    const int32_t h_stream[] = {0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9, 10, 10, 11, 11, 12, 12, 13};
    const int32_t w_stream[] = {0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11, 10, 11, 13};
    assert_memory_equal(b->positions, t_stream, sizeof t_stream);
    assert_memory_equal(b->positions + 46, h_stream, sizeof h_stream);
    assert_memory_equal(b->positions + 92, w_stream, sizeof w_stream);
    assert_true(b->wide && b->visual_distinct);
    int64_t visual = 0;
    for (int64_t t = 0; t < 46; t++) {
        assert_true((b->visual_index[t] >= 0) == (b->text_index[t] < 0));
        if (b->visual_index[t] >= 0)
            assert_int_equal(b->visual_index[t], visual++);
    }
    assert_int_equal(visual, 20);
    double weight = 0;
    int32_t replies = 0;
    for (int64_t i = 0; i < b->targets; i++) {
        int32_t t = b->target_token[i] + 1;
        assert_int_equal(b->target_label[i], b->input_ids[t]);
        const int32_t before = i > 0 ? b->target_token[i - 1] + 1 : -1;
        bool begins = i == 0 || before + 1 != t;
        for (int64_t doc = 0; doc < b->docs; doc++) {
            assert_int_not_equal(t, cu[doc]);
            begins |= before < cu[doc] && cu[doc] < t;
        }
        replies += begins;
        assert_int_equal(b->host_target_reply[i], replies - 1);
        weight += ((float *)b->target_weight)[i];
    }
    assert_true(fabs(weight - b->weight) < 1e-4);
    assert_int_equal(b->host_sample[2], 33);
    /* A still picture has one frame; made wide, both frames of a patch are that frame, in every
     * channel. */
    assert_memory_equal(b->pixels_wide + 512, rows[0].pixels + 256, 256);
    assert_memory_equal(b->pixels_wide + 768, rows[0].pixels + 256, 256);
    assert_memory_equal(b->pixels_wide + 48 * VIDEO_PATCH_BYTES, rows[0].pixels_video,
                        32 * VIDEO_PATCH_BYTES);
    fixture_close(&f);
}

/* Three weightings: every target counts 1, every document counts 1, or every document counts the
 * square root of the number of its targets. */
static void test_stager__weighting(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, false);
    double want[3] = {0};
    for (int64_t doc = 0; doc < 3; doc++) {
        int64_t n = 0;
        for (int64_t t = r.cu_seqlens[doc]; t < r.cu_seqlens[doc + 1]; t++)
            n += r.labels[t] != NO_LABEL;
        assert_true(n > 1);
        want[WEIGHTING_TOKEN] += (double)n;
        want[WEIGHTING_SAMPLE] += 1;
        want[WEIGHTING_SQRT] += sqrt((double)n);
    }
    open_staged(&f, &r, 1, 1, &b);
    assert_true(b->weight == want[WEIGHTING_TOKEN]);
    for (int kind = WEIGHTING_SQRT; kind >= WEIGHTING_TOKEN; kind--) {
        double sum = 0;
        stager_weigh(f.g, kind);
        assert_ok(stage_rows(f.g, f.s, &r, 1, &b));
        assert_true(fabs(b->weight - want[kind]) < 1e-12);
        for (int64_t i = 0; i < b->targets; i++)
            sum += (double)((float *)b->target_weight)[i];
        assert_true(fabs(sum - want[kind]) < 1e-5);
    }
    fixture_close(&f);
}

/* The example of equations.md: grid 30 x 40 on a table of 48 x 48, patch (1, 2). */
static void test_stager__position_corners(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.vision.positions = 2304;
    fixture_open(&f, &d);
    row r = fixture_row(&f, &(const document){"2 1x30x40 2", 1}, 1, false);
    open_staged(&f, &r, 1, 1, &b);
    int64_t p = 0;
    while (b->patch_row_col[2 * p] != 1 || b->patch_row_col[2 * p + 1] != 2)
        p++;
    const int32_t index[4] = {50, 51, 98, 99};
    const double weight[4] = {0.223696, 0.155615, 0.366048, 0.254642};
    for (int q = 0; q < 4; q++) {
        assert_int_equal(b->pos_index[4 * p + q], index[q]);
        assert_true(fabs(((float *)b->pos_weight)[4 * p + q] - weight[q]) < 1e-6);
    }
    fixture_close(&f);
}

static void test_stager__padding(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, false);
    open_staged(&f, &r, 1, 32, &b);
    batch_caps n = batch_sizes(b);
    assert_int_equal(n.tokens, 64);
    assert_int_equal(n.patches, 128);
    assert_int_equal(b->n_tokens[0], 46);
    for (int64_t t = 46; t < 64; t++)
        assert_true(b->text_index[t] == -1 && b->visual_index[t] == -1 && b->input_ids[t] == 0);
    assert_int_equal(b->positions[64 + 7], 5); /* the axes lie cap.tokens apart */
    assert_int_equal(b->cu_docs[3], 46);
    row small = fixture_row(&f, &debug_documents[2], 1, false);
    assert_ok(stage_rows(f.g, f.s, &small, 1, &b)); /* nothing of the larger batch remains */
    for (int64_t doc = 1; doc <= 3; doc++)
        assert_int_equal(b->cu_docs[doc], 10);
    for (int64_t i = b->targets; i < b->cap.targets; i++)
        assert_true(b->target_label[i] == -1 && b->target_token[i] == -1);
    for (int64_t frame = 0; frame <= b->cap.frames; frame++)
        assert_int_equal(b->cu_frames[frame], 0);
    fixture_close(&f);
}

/* A batch gets the smallest bucket whose every capacity holds the rows; if no bucket does, it gets
 * the capacities of the buffers. */
static void test_stager__buckets(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    open_debug(&f);
    row all = fixture_row(&f, debug_documents, 3, false);
    row last = fixture_row(&f, &debug_documents[2], 1, false); /* ten tokens of text */
    const row two[2] = {last, last};
    model_options o = {.training = false};
    batch_caps_for(&all, 1, 1, 4, &o.cap);
    const batch_caps small = {.tokens = 24, .docs = 2, .targets = 22, .longest = 10};
    batch_caps tight[2] = {small, o.cap};
    tight[1].longest = 20; /* the longest document has 21 tokens */
    fixture_model(&f, &o, true);
    stager_bucket(f.g, tight, 2);
    assert_ok(stage_rows(f.g, f.s, two, 2, &b));
    batch_caps n = batch_sizes(b);
    assert_memory_equal(&n, &small, sizeof n);
    assert_int_equal(b->tokens, 20);
    assert_int_equal(b->longest, 10);
    assert_int_equal(b->positions[24 + 12], 2); /* the axes lie the bucket's tokens apart */
    assert_int_equal(b->cu_docs[2], 20);
    const int32_t variant = b->variant, *tokens = b->input_ids;
    assert_ok(stage_rows(f.g, f.s, &all, 1, &b));
    n = batch_sizes(b);
    assert_memory_equal(&n, &o.cap, sizeof n);
    assert_int_equal(b->longest, 21);
    assert_int_equal(b->frame, 24);
    assert_ptr_equal(b->input_ids, tokens); /* a captured graph has these addresses */
    assert_true(b->variant / 4 != variant / 4);
    tight[1].longest = 21;
    assert_ok(stage_rows(f.g, f.s, &all, 1, &b));
    assert_int_equal(batch_sizes(b).longest, 21);
    tight[0].targets = 1;
    assert_ok(stage_rows(f.g, f.s, two, 2, &b));
    assert_int_equal(batch_sizes(b).longest, 21);
    assert_ok(stage_rows(f.g, f.s, &last, 1, &b));
    stager_bucket(f.g, NULL, 0);
    fixture_close(&f);
}

static void welcome_list(const char *buckets, int64_t rows, bucket_list *out, status want,
                         const char *words)
{
    char text[1024];
    json_value *v;
    const batch_caps widest = {
        .tokens = 100, .docs = 26, .patches = 400, .items = 100, .frames = 100, .targets = 100};
    snprintf(text, sizeof text, "{\"buckets\":%s}", buckets);
    assert_ok(json_parse(text, strlen(text), "test", &v));
    if (want == ST_OK)
        assert_ok(bucket_list_read(v, rows, &widest, out));
    else
        assert_fails(want, bucket_list_read(v, rows, &widest, out), words);
    json_free(&v);
}

static void test_buckets__are_read_from_welcome(void **state)
{
    (void)state;
    bucket_list l;
#define TEXT(t, p, d, g, f)                                                                        \
    "{\"tokens\":" #t ",\"patches\":" #p ",\"documents\":" #d ",\"longest\":" #g                   \
    ",\"images\":3,\"frames\":" #f ",\"frame\":48,\"targets\":9}"
    welcome_list("[" TEXT(64, 99, 5, 30, 4) "," TEXT(100, 200, 60, 30, 4) "]", 2, &l, ST_OK, NULL);
    assert_int_equal(l.count, 2);
    const batch_caps first = {.tokens = 128,
                              .docs = 10,
                              .patches = 200,
                              .items = 6,
                              .frames = 8,
                              .targets = 18,
                              .longest = 30,
                              .frame = 48};
    assert_memory_equal(&l.cap[0], &first, sizeof first);
    /* An older daemon names fewer bounds and a recording none; then the budgets bound the rest. */
    welcome_list("[{\"tokens\":64,\"patches\":8,\"documents\":5,\"longest\":30,\"images\":3}]", 1,
                 &l, ST_OK, NULL);
    assert_true(l.count == 1 && l.cap[0].targets == 64 && l.cap[0].frames == 100 &&
                !l.cap[0].frame);
    welcome_list("[]", 3, &l, ST_OK, NULL);
    assert_true(l.count == 1 && l.cap[0].tokens == 300 && l.cap[0].docs == 78 && !l.cap[0].longest);
    welcome_list("null", 1, &l, ST_OK, NULL);
    assert_int_equal(l.count, 1);
    welcome_list("[" TEXT(101, 99, 5, 30, 4) "]", 1, &l, ST_PROTOCOL, "tokens 101");
    welcome_list("[" TEXT(64, 99, 5, -1, 4) "]", 1, &l, ST_PROTOCOL, "longest -1");
    welcome_list("[" TEXT(64, 99, 5, 30, 4) "," TEXT(64, 99, 4, 30, 4) "]", 1, &l, ST_PROTOCOL,
                 "documents 4, expected 5");
    welcome_list("[{}]", 1, &l, ST_BAD_INPUT, "tokens");
    welcome_list("[{},{},{},{},{},{},{},{},{}]", 1, &l, ST_PROTOCOL, "9 buckets");
#undef TEXT
}

static void test_stager__refuses_by_sample(void **state)
{
    (void)state;
    fixture f;
    device_batch *b;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, false);
    open_staged(&f, &r, 1, 1, &b);
    row bad = r;
    int32_t ids[64], labels[64], visual[64];
    size_t bytes = 46 * sizeof(int32_t);
#define FRESH()                                                                                    \
    do {                                                                                           \
        memcpy(ids, r.input_ids, bytes);                                                           \
        memcpy(labels, r.labels, bytes);                                                           \
        memcpy(visual, r.visual_row, bytes);                                                       \
        bad.input_ids = ids;                                                                       \
        bad.labels = labels;                                                                       \
        bad.visual_row = visual;                                                                   \
    } while (0)
    FRESH();
    ids[40] = 2048;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "sample 33");
    FRESH();
    labels[41] = 5000;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "sample 33");
    FRESH();
    labels[b->target_token[0] + 1] = NO_LABEL; /* room for one more */
    labels[21] = 7;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "no token before it");
    FRESH();
    visual[5] = -1;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "sample 11");
    FRESH();
    visual[5] = 99;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "visual row 99");
    FRESH();
    ids[5] = f.d.video_token;
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, &bad, 1, &b), "both image and video");
    FRESH();
    const row two[2] = {r, r};
    assert_fails(ST_BAD_INPUT, stage_rows(f.g, f.s, two, 2, &b), "capacity");
    assert_ok(stage_rows(f.g, f.s, &bad, 1, &b));
#undef FRESH
    fixture_close(&f);
}

/* A rank's part of a row keeps its place when a large bucket follows a small one, and the parts of
 * four ranks make up the row, with nothing missing and nothing twice. */
static void test_stager__ranks_share_rows_in_buckets(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row small = fixture_row(&f, &debug_documents[2], 1, true);
    row large = fixture_row(&f, debug_documents, 3, true);
    batch_caps bucket[2] = {{0}, {0}};
    batch_caps_for(&small, 1, 1, 4, &bucket[0]);
    batch_caps_for(&large, 1, 1, 4, &bucket[1]);
    int64_t tokens = 0, patches = 0, targets = 0;
    for (int64_t rank = 0; rank < 4; rank++) {
        const row_share share = {
            .context = 2, .tensor = 2, .context_rank = rank / 2, .tensor_rank = rank % 2};
        stager *g;
        device_batch *b;
        assert_ok(stager_new_shared(f.s, &f.d, &bucket[1], &share, &g));
        stager_bucket(g, bucket, 2);
        for (int turn = 0; turn < 4; turn++) {
            const bool is_large = turn % 2;
            assert_ok(stage_rows(g, f.s, is_large ? &large : &small, 1, &b));
            assert_int_equal(b->cap.tokens, (bucket[is_large].tokens + 3) / 4);
            assert_int_equal(b->cap.patches, bucket[is_large].patches);
            assert_int_equal(b->cu_frames[b->frames], b->patches);
        }
        tokens += *b->n_tokens; /* on the CPU the test can read device memory */
        patches += b->patches;
        targets += b->targets;
        stager_free(&g, f.s);
    }
    assert_int_equal(tokens, large.n_tokens);
    assert_int_equal(patches, large.n_patches + large.n_video_patches);
    int64_t want = 0;
    for (int64_t i = 0; i < large.n_tokens; i++)
        want += large.labels[i] != NO_LABEL;
    assert_int_equal(targets, want);
    fixture_close(&f);
}

/* Pipeline stages after the first stage the same text as the first, but no patches, and keep no
 * room for them. */
static void test_stager__later_stages_have_only_text(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, true);
    batch_caps cap = {0};
    batch_caps_for(&r, 1, 1, 4, &cap);
    for (int64_t ranks = 1; ranks <= 2; ranks++) {
        const row_share seeing = {.context = ranks, .tensor = 1, .context_rank = ranks - 1};
        row_share blind = seeing;
        stager *g[2];
        device_batch *b[2];
        blind.blind = true;
        const row_share *const share[2] = {&seeing, &blind};
        for (int i = 0; i < 2; i++) {
            assert_ok(stager_new_shared(f.s, &f.d, &cap, share[i], &g[i]));
            assert_ok(stage_rows(g[i], f.s, &r, 1, &b[i]));
        }
        assert_true(b[0]->patches > 0 && b[0]->frames > 0);
        assert_int_equal(b[1]->patches + b[1]->frames, 0);
        assert_true(stager_bytes(&cap, &seeing, f.dev->backend) -
                        stager_bytes(&cap, &blind, f.dev->backend) >=
                    cap.patches * (PATCH_BYTES + VIDEO_PATCH_BYTES));
        assert_int_equal(b[1]->tokens, b[0]->tokens);
        assert_int_equal(b[1]->targets, b[0]->targets);
        assert_int_equal(b[1]->feature_rows, b[0]->feature_rows);
        const size_t tokens = (size_t)b[0]->tokens * sizeof(int32_t);
        assert_memory_equal(b[1]->input_ids, b[0]->input_ids, tokens);
        assert_memory_equal(b[1]->positions, b[0]->positions, 3 * tokens);
        assert_memory_equal(b[1]->visual_index, b[0]->visual_index, tokens);
        for (int i = 0; i < 2; i++)
            stager_free(&g[i], f.s);
    }
    fixture_close(&f);
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
