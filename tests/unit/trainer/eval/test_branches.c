/* SPDX-License-Identifier: Apache-2.0 */
/* test_branches.c: evaluation of samples that share a prefix in their row. Every branch must be
 * scored as its sample alone, and continued with the words that its sample alone gets. Rows are
 * drawn from seeds: prefixes with pictures or text alone, their branches, of which some have
 * several replies, and ordinary documents between them. Compiled twice, for float and double. */
#include "tests/unit/trainer/model/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/device/real.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"
#include "trainer/ops/table.h"

enum { NEW_TOKENS = 6, TREES = 3, DOCS_MAX = 64, REPLIES_MAX = 128 };

/* Draws which documents a row has: prefix[doc] is -1 for an ordinary document and a prefix, else
 * the number of the prefix. Returns how many there are. */
static int draw_documents(rng_key key, document out[DOCS_MAX], char text[DOCS_MAX][24],
                          int32_t prefix[DOCS_MAX])
{
    static const char *const prefixes[] = {"4 1x4x6 3", "9", "2 1x4x4 2 1x6x4 5", "40"};
    int count = 0;
    uint64_t drawn = 0;
    for (int i = 0; i < TREES; i++) {
        const int branches = (int)(2 + rng_below(key, drawn++, 10)), root = count;
        prefix[count] = -1;
        snprintf(text[count++], 24, "%s", prefixes[rng_below(key, drawn++, 4)]);
        for (int j = 0; j < branches; j++) {
            prefix[count] = root;
            snprintf(text[count++], 24, "%d", (int)(3 + rng_below(key, drawn++, 20)));
        }
        prefix[count] = -1; /* an ordinary document */
        snprintf(text[count++], 24, "%s", rng_below(key, drawn++, 2) ? "3 1x4x4 5" : "7");
    }
    for (int i = 0; i < count; i++)
        out[i] = (document){text[i], 1000 + 10 * drawn + (uint64_t)i};
    return count;
}

/* Labels the last tokens of a document, and of a long one also two before them: a second reply. */
static void put_labels(row *packed, int64_t doc)
{
    const int64_t begin = packed->cu_seqlens[doc], end = packed->cu_seqlens[doc + 1];
    for (int64_t token = end - 2; token < end; token++)
        packed->labels[token] = packed->input_ids[token];
    if (packed->doc_prefix[doc] >= 0 && end - begin > 12)
        for (int64_t token = end - 7; token < end - 5; token++)
            packed->labels[token] = packed->input_ids[token];
}

static int32_t last_position(const row *packed, int64_t doc)
{
    int32_t last = 0;
    for (int axis = 0; axis < 3; axis++)
        for (int64_t token = packed->cu_seqlens[doc]; token < packed->cu_seqlens[doc + 1]; token++)
            last = packed->position_ids[axis * packed->n_tokens + token] > last
                       ? packed->position_ids[axis * packed->n_tokens + token]
                       : last;
    return last;
}

/* A row drawn from a seed. */
static row draw_row(fixture *setup, uint64_t seed)
{
    document docs[DOCS_MAX];
    char text[DOCS_MAX][24];
    int32_t prefix[DOCS_MAX];
    const int count = draw_documents(rng_key_make(seed, "branches"), docs, text, prefix);
    row packed = fixture_row(setup, docs, count, false);
    assert_ok(
        arena_calloc(&setup->rows, (size_t)count, sizeof(int32_t), (void **)&packed.doc_prefix));
    for (int64_t token = 0; token < packed.n_tokens; token++)
        packed.labels[token] = NO_LABEL;
    for (int doc = 0; doc < count; doc++) {
        const bool root = doc + 1 < count && prefix[doc + 1] == doc;
        packed.doc_prefix[doc] = prefix[doc];
        packed.doc_part[doc] = root ? -1 : 0;
        packed.doc_sample_id[doc] = (uint64_t)(100 + doc + root);
        if (!root)
            put_labels(&packed, doc);
        const int32_t on = prefix[doc] < 0 ? 0 : last_position(&packed, prefix[doc]) + 1;
        for (int axis = 0; axis < 3; axis++)
            for (int64_t token = packed.cu_seqlens[doc]; token < packed.cu_seqlens[doc + 1];
                 token++)
                packed.position_ids[axis * packed.n_tokens + token] += on;
    }
    assert_ok(row_check(&packed, "branches"));
    return packed;
}

static void test_prompt__of_a_branch_is_its_sample(void **state)
{
    (void)state;
    fixture setup = {0};
    assert_ok(dims_preset("debug", &setup.dims));
    arena_init(&setup.rows, 0);
    int64_t pictures = 0;
    for (uint64_t seed = 1; seed < 6; seed++) {
        const row packed = draw_row(&setup, seed);
        for (int64_t doc = 0; doc < packed.n_docs; doc++) {
            row alone;
            if (row_is_prefix(&packed, doc))
                continue;
            assert_ok(prompt_whole_sample(&packed, doc, &setup.rows, &alone));
            assert_ok(row_check(&alone, "alone"));
            assert_int_equal(alone.n_docs, 1);
            assert_int_equal(alone.n_tokens, sample_tokens(&packed, doc));
            assert_int_equal(alone.doc_sample_id[0], packed.doc_sample_id[doc]);
            for (int64_t i = 0; i < alone.n_tokens; i++) {
                const int64_t token = sample_token(&packed, doc, i);
                assert_int_equal(alone.input_ids[i], packed.input_ids[token]);
                assert_int_equal(alone.labels[i], packed.labels[token]);
                for (int axis = 0; axis < 3; axis++)
                    assert_int_equal(alone.position_ids[axis * alone.n_tokens + i],
                                     packed.position_ids[axis * packed.n_tokens + token]);
                assert_int_equal(alone.visual_row[i] < 0, packed.visual_row[token] < 0);
                if (alone.visual_row[i] < 0)
                    continue;
                pictures += packed.doc_prefix[doc] >= 0;
                assert_memory_equal(alone.pixels + (size_t)alone.visual_row[i] * 4 * PATCH_BYTES,
                                    packed.pixels +
                                        (size_t)packed.visual_row[token] * 4 * PATCH_BYTES,
                                    4 * PATCH_BYTES);
            }
        }
    }
    assert_true(pictures > 0);
    arena_done(&setup.rows);
}

/* What the model says of each target: the likeliest token, and the loss. */
typedef struct verdicts {
    int32_t best[2 * REPLIES_MAX];
    real nll[2 * REPLIES_MAX];
} verdicts;

/* Runs the forward pass of a row and writes its verdicts from place `at` on. Returns how many
 * targets there are. */
static int64_t judge(fixture *setup, const row *packed, verdicts *out, int64_t at)
{
    const backend_vtable *backend = setup->dev->backend;
    device_batch *batch;
    void *nll;
    int32_t *chosen;
    assert_ok(stage_rows(setup->staging, setup->queue, packed, 1, &batch));
    assert_true(at + batch->targets <= 2 * REPLIES_MAX);
    assert_ok(backend->alloc(setup->dev, 2 * REPLIES_MAX * sizeof(real), &nll));
    assert_ok(backend->alloc(setup->dev, 2 * REPLIES_MAX * sizeof *chosen, (void **)&chosen));
    assert_ok(model_forward(setup->net, setup->queue, batch, &setup->sums, nll, chosen));
    const size_t targets = (size_t)batch->targets;
    assert_ok(backend->to_host(setup->queue, out->best + at, chosen, targets * sizeof *chosen));
    assert_ok(backend->to_host(setup->queue, out->nll + at, nll, targets * sizeof(real)));
    assert_ok(backend->wait(setup->queue));
    backend->release(setup->dev, nll);
    backend->release(setup->dev, chosen);
    return batch->targets;
}

static void test_evaluation__judges_a_branch_as_its_sample(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    verdicts together, apart, unbranched;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    for (uint64_t seed = 1; seed < 4; seed++) {
        row packed = draw_row(&setup, seed);
        model_options options = {.training = false};
        batch_caps_for(&packed, 1, 64, 64, &options.cap);
        fixture_model(&setup, &options, seed % 2 == 0);
        const int64_t count = judge(&setup, &packed, &together, 0);
        int64_t at = 0;
        for (int64_t doc = 0; doc < packed.n_docs; doc++) {
            row alone;
            if (row_is_prefix(&packed, doc))
                continue;
            assert_ok(prompt_whole_sample(&packed, doc, &setup.rows, &alone));
            at += judge(&setup, &alone, &apart, at);
        }
        assert_int_equal(at, count);
        assert_memory_equal(together.best, apart.best, (size_t)count * sizeof *apart.best);
        /* Without their prefixes branches are judged otherwise, so the losses tell them apart. */
        packed.doc_prefix = NULL;
        assert_int_equal(judge(&setup, &packed, &unbranched, 0), count);
        double worst = 0, least = 0;
        for (int64_t i = 0; i < count; i++) {
            worst = fmax(worst, fabs((double)(together.nll[i] - apart.nll[i])));
            least = fmax(least, fabs((double)(unbranched.nll[i] - apart.nll[i])));
        }
        assert_true(worst < (sizeof(real) == 8 ? 1e-12 : 1e-4));
        assert_true(least > 1e-2);
    }
    fixture_close(&setup);
}

/* Counts the rows that the routers see, which is how much is computed. */
static int64_t rows_seen;
static status (*route_below)(stream *, const route_fwd_args *);

static status count_rows(stream *queue, const route_fwd_args *args)
{
    rows_seen += args->tokens;
    return route_below(queue, args);
}

static generator *open_generator(fixture *setup, const mesh *alone, const batch_caps *cap)
{
    generator *made;
    const generator_options options = {.stream = setup->queue,
                                       .dims = &setup->dims,
                                       .mesh = alone,
                                       .model = setup->net,
                                       .prompts = setup->staging,
                                       .cap = *cap,
                                       .longest = cap->tokens};
    assert_ok(generate_new(&options, &made));
    return made;
}

static void expect_same(token_list *got, token_list *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(got[i].count, want[i].count);
        assert_memory_equal(got[i].id, want[i].id, got[i].count * sizeof(int32_t));
        token_list_done(&got[i]);
    }
}

/* Answers every reply of a row: each sample in its own row.
 * Returns the tokens of all prompts. */
static int64_t answer_apart(fixture *setup, generator *generation, const row *packed,
                            const reply *replies, int64_t count, token_list *out)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        row alone;
        const int64_t begin = sample_index(packed, replies[i].doc, replies[i].begin);
        assert_ok(prompt_whole_sample(packed, replies[i].doc, &setup->rows, &alone));
        const reply own = {0, begin, begin + replies[i].end - replies[i].begin};
        assert_ok(generate_answers(generation, &alone, &own, 1, NEW_TOKENS, &out[i]));
        tokens += begin;
    }
    return tokens;
}

/* The tokens of the prompts of all replies, if every prefix is computed once. */
static int64_t tokens_together(const row *packed, const reply *replies, int64_t count)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += replies[i].begin - packed->cu_seqlens[replies[i].doc];
    for (int64_t doc = 0; doc < packed->n_docs; doc++)
        if (row_is_prefix(packed, doc))
            tokens += packed->cu_seqlens[doc + 1] - packed->cu_seqlens[doc];
    return tokens;
}

static void test_generate_answers__of_branches_are_those_of_samples(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {1, 4,
                                     7}; /* the last two have few enough replies for one batch */
    int single_batches = 0;
    fixture setup;
    model_dims dims;
    mesh alone;
    mesh_alone(&alone);
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    setup.dims.n_ends = 0;
    ops_table counting = *setup.queue->ops;
    route_below = counting.route_fwd;
    counting.route_fwd = count_rows;
    setup.queue->ops = &counting;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        const row packed = draw_row(&setup, seeds[i]);
        reply replies[REPLIES_MAX];
        token_list want[REPLIES_MAX] = {{0}}, got[REPLIES_MAX] = {{0}};
        const int64_t count = replies_of_row(&packed, replies);
        assert_in_range(count, 9, REPLIES_MAX);
        model_options options = {.training = false};
        batch_caps_for(&packed, 1, 64, 64, &options.cap);
        options.cap.tokens += 512; /* later replies of a document repeat its beginning */
        options.cap.docs += 64;
        fixture_model(&setup, &options, false);
        generator *generation = open_generator(&setup, &alone, &options.cap);
        const int64_t apart = answer_apart(&setup, generation, &packed, replies, count, want);
        rows_seen = 0;
        assert_ok(generate_answers(generation, &packed, replies, count, NEW_TOKENS, got));
        const int64_t steps = count * (NEW_TOKENS - 1),
                      together = tokens_together(&packed, replies, count);
        if (count <= 32) { /* one batch, in which no prefix is computed twice */
            assert_int_equal(rows_seen, dims.text.layers * (together + steps));
            single_batches++;
        }
        assert_true(together < apart);
        expect_same(got, want, count);
        generate_free(&generation);
        /* Ops that run on capacities; room for two documents, then for one, at a time. */
        for (int way = 0; way < 3; way++) {
            batch_caps cap = options.cap;
            memset(got, 0, sizeof got);
            stager_fix_shapes(setup.staging, way == 0);
            cap.docs = way == 0 ? cap.docs : way == 1 ? 3 : 1;
            generation = open_generator(&setup, &alone, &cap);
            assert_ok(generate_answers(generation, &packed, replies, count, NEW_TOKENS, got));
            expect_same(got, want, count);
            generate_free(&generation);
        }
        for (int64_t k = 0; k < count; k++)
            token_list_done(&want[k]);
    }
    assert_int_equal(single_batches, 2);
    fixture_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt__of_a_branch_is_its_sample),
        cmocka_unit_test(test_evaluation__judges_a_branch_as_its_sample),
        cmocka_unit_test(test_generate_answers__of_branches_are_those_of_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
