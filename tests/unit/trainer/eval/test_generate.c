/* A document out of a packed row, and its greedy continuation: teacher forcing on what was
 * generated must choose the same tokens. */
#include "tests/unit/trainer/model/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/eval/generate.h"

enum { NEW_TOKENS = 6 };

static const document packed[3] = {{"4 1x4x6 3 1x6x4 2", 7}, {"5 1x4x4 2 1x6x4 8", 8}, {"10", 9}};

/* The row of three documents with labels as prepd writes them: a last run of each. */
static row packed_row(fixture *f)
{
    row r = fixture_row(f, packed, 3, false);
    for (int64_t t = 0; t < r.n_tokens; t++)
        r.labels[t] = NO_LABEL;
    for (int64_t d = 0; d < 3; d++)
        for (int64_t t = r.cu_seqlens[d + 1] - 2; t < r.cu_seqlens[d + 1]; t++)
            r.labels[t] = r.input_ids[t];
    return r;
}

static void test_generate_prompt__is_the_document_alone(void **state)
{
    (void)state;
    fixture f = {0};
    assert_ok(dims_preset("debug", &f.d));
    arena_init(&f.rows, 0);
    row r = packed_row(&f), p;
    int64_t begin = r.cu_seqlens[1], n = r.cu_seqlens[2] - begin - 2;
    assert_ok(generate_prompt(&r, 1, NEW_TOKENS, &f.rows, &p));
    assert_ok(row_check(&p, "prompt"));
    assert_int_equal(p.n_tokens, n);
    assert_int_equal(p.n_docs, 1);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(p.n_patches, 16 + 24);
    assert_int_equal(p.doc_sample_id[0], 8);
    assert_memory_equal(p.input_ids, r.input_ids + begin, (size_t)n * sizeof(int32_t));
    assert_memory_equal(p.grid_thw, r.grid_thw + 6, 6 * sizeof(int32_t));
    assert_memory_equal(p.pixels, r.pixels + 48 * PATCH_BYTES, 40 * PATCH_BYTES);
    for (int axis = 0; axis < 3; axis++)
        assert_memory_equal(p.position_ids + axis * n, r.position_ids + axis * r.n_tokens + begin,
                            (size_t)n * sizeof(int32_t));
    for (int64_t t = 0; t < n; t++) {
        int32_t was = r.visual_row[begin + t];
        assert_int_equal(p.visual_row[t], was < 0 ? -1 : was - 12);
        assert_int_equal(p.labels[t], NO_LABEL);
    }

    assert_ok(generate_prompt(&r, 2, NEW_TOKENS, &f.rows, &p)); /* text alone */
    assert_int_equal(p.n_tokens, 8);
    assert_int_equal(p.n_items + p.n_patches, 0);
    arena_done(&f.rows);
}

/* Prompt and answer as one document whose targets are the answer. */
static row forced_row(fixture *f, const row *r, int64_t doc, const token_list *answer)
{
    row p, out;
    int64_t extra = (int64_t)answer->n;
    assert_ok(generate_prompt(r, doc, 0, &f->rows, &p));
    out = p;
    out.n_tokens = p.n_tokens + extra;
    assert_ok(row_alloc(&out, &f->rows, 0));
    out.cu_seqlens[1] = (int32_t)out.n_tokens;
    memcpy(out.input_ids, p.input_ids, (size_t)p.n_tokens * sizeof(int32_t));
    memcpy(out.visual_row, p.visual_row, (size_t)p.n_tokens * sizeof(int32_t));
    memcpy(out.grid_thw, p.grid_thw, (size_t)p.n_items * 3 * sizeof(int32_t));
    memcpy(out.pixels, p.pixels, (size_t)p.n_patches * PATCH_BYTES);
    int32_t next = 0;
    for (int64_t i = 0; i < 3 * p.n_tokens; i++)
        if (p.position_ids[i] >= next)
            next = p.position_ids[i] + 1;
    for (int axis = 0; axis < 3; axis++) {
        int32_t *to = out.position_ids + axis * out.n_tokens;
        memcpy(to, p.position_ids + axis * p.n_tokens, (size_t)p.n_tokens * sizeof(int32_t));
        for (int64_t i = 0; i < extra; i++)
            to[p.n_tokens + i] = next + (int32_t)i;
    }
    for (int64_t i = 0; i < extra; i++)
        out.input_ids[p.n_tokens + i] = out.labels[p.n_tokens + i] = answer->id[i];
    return out;
}

static void test_generate_answer__is_what_teacher_forcing_chooses(void **state)
{
    (void)state;
    fixture f;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&f, &d);
    row r = packed_row(&f);
    model_options o = {.training = false};
    batch_caps_for(&r, 1, 64, 64, &o.cap);
    fixture_model(&f, &o, false);
    session s = {.device = f.dev,
                 .stream = f.s,
                 .dims = f.d,
                 .params = f.p,
                 .model = f.m,
                 .stager = f.g,
                 .cap = o.cap,
                 .sums = {f.sums.loss, f.sums.weight, f.sums.aux}};
    int64_t judged = 0;
    for (int64_t doc = 0; doc < 3; doc++) {
        token_list answer = {0};
        assert_ok(generate_answer(&s, &r, doc, NEW_TOKENS, &answer));
        if (answer.n > 0) {
            row forced = forced_row(&f, &r, doc, &answer);
            device_batch *b;
            int32_t *best;
            loss_sums sums = f.sums;
            assert_ok(f.dev->v->alloc(f.dev, (size_t)o.cap.targets * sizeof *best, (void **)&best));
            assert_ok(stage_rows(f.g, f.s, &forced, 1, &b));
            assert_ok(model_forward(f.m, f.s, b, &sums, NULL, best));
            assert_int_equal(b->targets, answer.n);
            for (size_t i = 0; i < answer.n; i++, judged++)
                assert_int_equal(best[i], answer.id[i]);
            f.dev->v->release(f.dev, best);
        }
        token_list_done(&answer);
    }
    assert_true(judged > NEW_TOKENS);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_prompt__is_the_document_alone),
        cmocka_unit_test(test_generate_answer__is_what_teacher_forcing_chooses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
