/* SPDX-License-Identifier: Apache-2.0 */
/* test_generate.c: answers generated for documents of a packed row. A document is taken out of its
 * row and continued greedily with cached keys and values; every token must be the one that a
 * forward pass over the whole document chooses. Also tests which documents are answered at all. */
#include "tests/unit/trainer/model/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/eval/answers.h"
#include "trainer/eval/image_swap.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"
#include "trainer/ops/table.h"
#include "trainer/run/session.h"

enum { NEW_TOKENS = 6, LETTER_A = 64 /* the id of "a" in the golden tokenizer */ };

static const document packed[3] = {{"4 1x4x6 3 1x6x4 2", 7}, {"5 1x4x4 2 1x6x4 8", 8}, {"10", 9}};

/* A row of three documents whose labels are as prepd writes them: one run at the end of each
 * document. */
static row packed_row(fixture *setup)
{
    row one = fixture_row(setup, packed, 3, false);
    for (int64_t token = 0; token < one.n_tokens; token++)
        one.labels[token] = NO_LABEL;
    for (int64_t doc = 0; doc < 3; doc++)
        for (int64_t token = one.cu_seqlens[doc + 1] - 2; token < one.cu_seqlens[doc + 1]; token++)
            one.labels[token] = one.input_ids[token];
    return one;
}

/* The reply of a document that has one. */
static reply reply_to(const row *one, int64_t doc)
{
    reply all[16];
    const int64_t count = replies_of_row(one, all);
    for (int64_t i = 0; i < count; i++)
        if (all[i].doc == doc)
            return all[i];
    fail();
    return all[0];
}

static void test_prompt_of_reply__is_the_document_alone(void **state)
{
    (void)state;
    fixture setup = {0};
    assert_ok(dims_preset("debug", &setup.dims));
    arena_init(&setup.rows, 0);
    row one = packed_row(&setup), own;
    int64_t begin = one.cu_seqlens[1], count = one.cu_seqlens[2] - begin - 2;
    reply to;
    to = reply_to(&one, 1);
    assert_ok(prompt_of_reply(&one, &to, &setup.rows, &own));
    assert_ok(row_check(&own, "prompt"));
    assert_int_equal(own.n_tokens, count);
    assert_int_equal(own.n_docs, 1);
    assert_int_equal(own.n_items, 2);
    assert_int_equal(own.n_patches, 16 + 24);
    assert_int_equal(own.doc_sample_id[0], 8);
    assert_memory_equal(own.input_ids, one.input_ids + begin, (size_t)count * sizeof(int32_t));
    assert_memory_equal(own.grid_thw, one.grid_thw + 6, 6 * sizeof(int32_t));
    assert_memory_equal(own.pixels, one.pixels + 48 * PATCH_BYTES, 40 * PATCH_BYTES);
    for (int axis = 0; axis < 3; axis++)
        assert_memory_equal(own.position_ids + axis * count,
                            one.position_ids + axis * one.n_tokens + begin,
                            (size_t)count * sizeof(int32_t));
    for (int64_t token = 0; token < count; token++) {
        int32_t was = one.visual_row[begin + token];
        assert_int_equal(own.visual_row[token], was < 0 ? -1 : was - 12);
        assert_int_equal(own.labels[token], NO_LABEL);
    }

    to = reply_to(&one, 2);
    assert_ok(prompt_of_reply(&one, &to, &setup.rows, &own)); /* text alone */
    assert_int_equal(own.n_tokens, 8);
    assert_int_equal(own.n_items + own.n_patches, 0);
    arena_done(&setup.rows);
}

/* The prompt of a later reply has the reference of the earlier ones, and only the pictures that
 * were shown so far. */
static void test_prompt_of_reply__ends_before_a_later_reply(void **state)
{
    (void)state;
    fixture setup = {0};
    assert_ok(dims_preset("debug", &setup.dims));
    arena_init(&setup.rows, 0);
    row one = packed_row(&setup), own;
    const int64_t begin = one.cu_seqlens[1];
    reply all[4];
    int64_t between = begin; /* the text token after the first picture of document 1 */
    while (one.visual_row[between] < 0)
        between++;
    while (one.visual_row[between] >= 0)
        between++;
    one.labels[between] = one.input_ids[between];
    assert_int_equal(replies_of_row(&one, all), 4);
    assert_ok(prompt_of_reply(&one, &all[1], &setup.rows, &own));
    assert_int_equal(own.n_tokens, between - begin);
    assert_int_equal(own.n_items, 1);
    assert_int_equal(own.n_patches, 16);
    assert_ok(row_check(&own, "prompt"));
    assert_ok(prompt_of_reply(&one, &all[2], &setup.rows, &own));
    assert_int_equal(own.n_tokens, one.cu_seqlens[2] - begin - 2);
    assert_int_equal(own.n_items, 2);
    assert_int_equal(own.input_ids[between - begin], one.input_ids[between]);
    arena_done(&setup.rows);
}

/* A row with prompt and answer as one document, whose targets are the tokens of the answer. */
static row forced_row(fixture *setup, const row *one, int64_t doc, const token_list *answer)
{
    row own, out;
    int64_t extra = (int64_t)answer->count;
    const reply wanted = reply_to(one, doc);
    assert_ok(prompt_of_reply(one, &wanted, &setup->rows, &own));
    out = own;
    out.n_tokens = own.n_tokens + extra;
    assert_ok(row_alloc(&out, &setup->rows, 0));
    out.cu_seqlens[1] = (int32_t)out.n_tokens;
    memcpy(out.input_ids, own.input_ids, (size_t)own.n_tokens * sizeof(int32_t));
    memcpy(out.visual_row, own.visual_row, (size_t)own.n_tokens * sizeof(int32_t));
    memcpy(out.grid_thw, own.grid_thw, (size_t)own.n_items * 3 * sizeof(int32_t));
    memcpy(out.pixels, own.pixels, (size_t)own.n_patches * PATCH_BYTES);
    int32_t next = 0;
    for (int64_t i = 0; i < 3 * own.n_tokens; i++)
        if (own.position_ids[i] >= next)
            next = own.position_ids[i] + 1;
    for (int axis = 0; axis < 3; axis++) {
        int32_t *to = out.position_ids + axis * out.n_tokens;
        memcpy(to, own.position_ids + axis * own.n_tokens, (size_t)own.n_tokens * sizeof(int32_t));
        for (int64_t i = 0; i < extra; i++)
            to[own.n_tokens + i] = next + (int32_t)i;
    }
    for (int64_t i = 0; i < extra; i++)
        out.input_ids[own.n_tokens + i] = out.labels[own.n_tokens + i] = answer->id[i];
    return out;
}

/* The token that follows a row of one document, by a forward pass over all of it. */
static int32_t next_word(session *run, const row *one)
{
    const backend_vtable *backend = run->device->backend;
    const int32_t at = (int32_t)(one->n_tokens - 1);
    loss_sums sums = {run->sums.loss, run->sums.weight, run->sums.aux};
    int64_t vocab = run->dims.text.vocab, best = -1;
    device_batch *batch;
    float *logits;
    int32_t *last;
    assert_ok(backend->alloc(run->device, (size_t)vocab * sizeof *logits, (void **)&logits));
    assert_ok(backend->alloc(run->device, sizeof *last, (void **)&last));
    assert_ok(backend->to_device(run->stream, last, &at, sizeof at));
    assert_ok(stage_rows(run->stager, run->stream, one, 1, &batch));
    assert_ok(model_forward(run->model, run->stream, batch, &sums, NULL, NULL));
    assert_ok(model_logits(run->model, run->stream, last, 1, logits));
    assert_ok(backend->wait(run->stream)); /* on the CPU the test can read device memory */
    for (int64_t i = 0; i < vocab; i++)
        if (i != run->dims.image_token && i != run->dims.video_token &&
            (best < 0 || logits[i] > logits[best]))
            best = i;
    backend->release(run->device, logits);
    backend->release(run->device, last);
    return (int32_t)best;
}

/* Generates the answer without a cache: one pass over the whole document for each token. */
static void recomputed_answer(fixture *setup, session *run, const row *one, int64_t doc,
                              token_list *out)
{
    int32_t id[NEW_TOKENS];
    *out = (token_list){.id = malloc(sizeof id), .capacity = NEW_TOKENS};
    assert_non_null(out->id);
    while (out->count < NEW_TOKENS) {
        row forced = forced_row(setup, one, doc, out);
        int32_t word = next_word(run, &forced);
        if (dims_is_end(&run->dims, word))
            break;
        out->id[out->count++] = word;
    }
}

static session session_of(fixture *setup)
{
    session run = {.device = setup->dev,
                   .stream = setup->queue,
                   .dims = setup->dims,
                   .params = setup->registry,
                   .model = setup->net,
                   .stager = setup->staging,
                   .cap = setup->options.cap,
                   .sums = {setup->sums.loss, setup->sums.weight, setup->sums.aux}};
    mesh_alone(&run.mesh);
    return run;
}

static status open_generator(session *run)
{
    const generator_options options = {.stream = run->stream,
                                       .dims = &run->dims,
                                       .mesh = &run->mesh,
                                       .model = run->model,
                                       .prompts = run->stager,
                                       .cap = run->cap,
                                       .longest = run->cap.tokens};
    return generate_new(&options, &run->generator);
}

/* Answers all documents at once with cached keys and values; then again with ops that run on
 * capacities, and with room for only one prompt at a time. */
static void test_generate_answers__is_what_recomputing_chooses(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    row one = packed_row(&setup);
    model_options options = {.training = false, .router_aux_coef = 0.1};
    batch_caps_for(&one, 1, 64, 64, &options.cap);
    fixture_model(&setup, &options, false);
    session run = session_of(&setup);
    token_list want[3], got[3];
    run.dims.n_ends = 0;
    for (int64_t doc = 0; doc < 2; doc++) { /* so that these answers end before the third */
        recomputed_answer(&setup, &run, &one, doc, &want[doc]);
        run.dims.end_token[doc] = want[doc].id[2 - doc];
        token_list_done(&want[doc]);
    }
    run.dims.n_ends = 2;
    for (int64_t doc = 0; doc < 3; doc++)
        recomputed_answer(&setup, &run, &one, doc, &want[doc]);
    assert_true(want[0].count <= 2 && want[1].count <= 1 && want[2].count > 0);
    const int64_t docs[3] = {2, 0, 1};
    const reply replies[3] = {reply_to(&one, 2), reply_to(&one, 0), reply_to(&one, 1)};
    for (int way = 0; way < 3; way++) {
        stager_fix_shapes(setup.staging, way == 1);
        run.cap.docs = way == 2 ? 1 : options.cap.docs;
        assert_ok(open_generator(&run));
        memset(got, 0, sizeof got);
        assert_ok(generate_answers(run.generator, &one, replies, 3, NEW_TOKENS, got));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(got[i].count, want[docs[i]].count);
            assert_memory_equal(got[i].id, want[docs[i]].id, got[i].count * sizeof(int32_t));
            token_list_done(&got[i]);
        }
        generate_free(&run.generator);
    }
    for (int i = 0; i < 3; i++)
        token_list_done(&want[i]);
    fixture_close(&setup);
}

/* Counts the rows that the routers see, which is how much is computed for an answer beyond its
 * prompt. */
static int64_t rows_seen;
static status (*route_below)(stream *, const route_fwd_args *);

static status count_rows(stream *queue, const route_fwd_args *args)
{
    rows_seen += args->tokens;
    return route_below(queue, args);
}

static void test_generate_answers__each_word_costs_one_token(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    row one = packed_row(&setup);
    model_options options = {.training = false};
    batch_caps_for(&one, 1, 64, 64, &options.cap);
    fixture_model(&setup, &options, false);
    session run = session_of(&setup);
    run.dims.n_ends = 0;
    assert_ok(open_generator(&run));
    ops_table counting = *setup.queue->ops;
    route_below = counting.route_fwd;
    counting.route_fwd = count_rows;
    setup.queue->ops = &counting;
    token_list got[3] = {0};
    rows_seen = 0;
    const reply replies[3] = {reply_to(&one, 0), reply_to(&one, 1), reply_to(&one, 2)};
    assert_ok(generate_answers(run.generator, &one, replies, 3, NEW_TOKENS, got));
    int64_t prompts = one.n_tokens - 3 * 2; /* without the targets */
    assert_int_equal(rows_seen, dims.text.layers * (prompts + 3 * (NEW_TOKENS - 1)));
    for (int i = 0; i < 3; i++)
        token_list_done(&got[i]);
    generate_free(&run.generator);
    fixture_close(&setup);
}

static tokenizer *golden_tokenizer(void)
{
    const char *source = getenv("TESSERA_SOURCE");
    char path[STATUS_PATH_MAX];
    tokenizer *vocabulary = NULL;
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    assert_ok(tokenizer_load(path, &vocabulary));
    return vocabulary;
}

/* A picture with two questions, as a prefix and its branches, and a text alone. */
static row shared_row(fixture *setup)
{
    static const document docs[4] = {{"4 1x4x6 3", 7}, {"5", 8}, {"8", 9}, {"6", 10}};
    row one = fixture_row(setup, docs, 4, false);
    assert_ok(arena_calloc(&setup->rows, 4, sizeof(int32_t), (void **)&one.doc_prefix));
    one.doc_prefix[0] = one.doc_part[0] = one.doc_prefix[3] = -1;
    one.doc_sample_id[0] = one.doc_sample_id[1];
    for (int64_t token = 0; token < one.n_tokens; token++)
        one.labels[token] = NO_LABEL;
    for (int64_t doc = 1; doc < 4; doc++)
        for (int64_t token = one.cu_seqlens[doc + 1] - 2; token < one.cu_seqlens[doc + 1]; token++)
            one.labels[token] = one.input_ids[token];
    assert_ok(row_check(&one, "a prefix with two branches"));
    return one;
}

/* The question of a branch, and what it adds to the level of chance, are those of its sample. */
static void test_question__of_a_branch_is_whole(void **state)
{
    (void)state;
    fixture setup = {0};
    chance together = {0}, apart = {0};
    reply replies[3];
    tokenizer *words = golden_tokenizer();
    assert_ok(dims_preset("debug", &setup.dims));
    arena_init(&setup.rows, 0);
    const row one = shared_row(&setup);
    for (int64_t token = 0; token < one.n_tokens; token++)
        if (one.visual_row[token] < 0) /* ids of letters */
            one.input_ids[token] = LETTER_A + (int32_t)(token % 26);
    assert_int_equal(replies_of_row(&one, replies), 3);
    assert_ok(chance_add(&together, &one, replies, 3));
    for (int i = 0; i < 3; i++) {
        row alone;
        reply own;
        char *got, *want;
        assert_int_equal(replies[i].doc, i + 1);
        assert_ok(prompt_whole_sample(&one, replies[i].doc, &setup.rows, &alone));
        assert_int_equal(replies_of_row(&alone, &own), 1);
        assert_ok(question_of_reply(&one, &replies[i], words, &got));
        assert_ok(question_of_reply(&alone, &own, words, &want));
        assert_string_equal(got, want);
        assert_true(i == 2 || strstr(got, " [picture] "));
        free(got);
        free(want);
        assert_ok(chance_add(&apart, &alone, &own, 1));
    }
    assert_int_equal(together.count, 2); /* the text alone shows no picture */
    assert_int_equal(apart.count, 2);
    assert_memory_equal(together.list, apart.list, 2 * sizeof *apart.list);
    chance_done(&together);
    chance_done(&apart);
    tokenizer_free(&words);
    arena_done(&setup.rows);
}

/* A rank that fails to print an answer must still count as many questions as the others; otherwise
 * the ranks would generate different documents of the next row. */
static void test_answers__are_counted_even_if_one_fails(void **state)
{
    (void)state;
    static const char reference[] =
        "{\"question_type\":\"q\",\"answer_type\":\"a\",\"answers\":[\"yes\"]}";
    char references[512];
    fixture setup;
    model_dims dims;
    vqa_tally tally[2];
    conf options = {.eval_generate = 4};
    answers words[2];
    reply replies[3];
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    row one = packed_row(&setup);
    assert_int_equal(replies_of_row(&one, replies), 3);
    model_options how = {.training = false};
    batch_caps_for(&one, 1, 64, 64, &how.cap);
    fixture_model(&setup, &how, false);
    session run = session_of(&setup);
    run.conf = &options;
    run.tokenizer = golden_tokenizer();
    assert_ok(open_generator(&run));
    memset(tally, 0, sizeof tally);
    for (int fails = 0; fails < 2; fails++) {
        words[fails] = (answers){.session = &run, .show = 4, .tally = &tally[fails]};
        for (int turn = 0; turn < 2; turn++) {
            snprintf(references, sizeof references, "[%s,%s,%s]", fails ? "{}" : reference,
                     reference, reference);
            one.references = references;
            assert_ok(answers_row(&words[fails], &one, replies, 3));
            assert_int_equal(words[fails].judged, turn == 0 ? 3 : 4);
            assert_int_equal(words[fails].show, turn == 0 ? 1 : 0); /* 4 are asked for: 3 and 1 */
        }
        assert_int_equal(tally[fails].all.count, fails ? 0 : 4);
        assert_int_equal(words[fails].trouble.code, fails ? ST_BAD_INPUT : ST_OK);
    }
    tokenizer_free(&run.tokenizer);
    generate_free(&run.generator);
    fixture_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_of_reply__is_the_document_alone),
        cmocka_unit_test(test_prompt_of_reply__ends_before_a_later_reply),
        cmocka_unit_test(test_generate_answers__is_what_recomputing_chooses),
        cmocka_unit_test(test_generate_answers__each_word_costs_one_token),
        cmocka_unit_test(test_question__of_a_branch_is_whole),
        cmocka_unit_test(test_answers__are_counted_even_if_one_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
