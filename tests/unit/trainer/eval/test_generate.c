/* test_generate.c: answers generated for documents of a packed row. A document is taken out of its
 * row and continued greedily with cached keys and values; every token must be the one that a
 * forward pass over the whole document chooses. Also tests which documents are answered at all. */
#include "tests/unit/trainer/model/fixture.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/eval/answers.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"
#include "trainer/ops/table.h"
#include "trainer/run/session.h"

enum { NEW_TOKENS = 6 };

static const document packed[3] = {{"4 1x4x6 3 1x6x4 2", 7}, {"5 1x4x4 2 1x6x4 8", 8}, {"10", 9}};

/* A row of three documents whose labels are as prepd writes them: one run at the end of each
 * document. */
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

/* The reply of a document that has one. */
static reply reply_to(const row *r, int64_t doc)
{
    reply all[16];
    const int64_t n = replies_of_row(r, all);
    for (int64_t i = 0; i < n; i++)
        if (all[i].doc == doc)
            return all[i];
    fail();
    return all[0];
}

static void test_prompt_of_reply__is_the_document_alone(void **state)
{
    (void)state;
    fixture f = {0};
    assert_ok(dims_preset("debug", &f.d));
    arena_init(&f.rows, 0);
    row r = packed_row(&f), p;
    int64_t begin = r.cu_seqlens[1], n = r.cu_seqlens[2] - begin - 2;
    reply to;
    to = reply_to(&r, 1);
    assert_ok(prompt_of_reply(&r, &to, &f.rows, &p));
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

    to = reply_to(&r, 2);
    assert_ok(prompt_of_reply(&r, &to, &f.rows, &p)); /* text alone */
    assert_int_equal(p.n_tokens, 8);
    assert_int_equal(p.n_items + p.n_patches, 0);
    arena_done(&f.rows);
}

/* A branch without its prefix would be a question without its picture. */
static void test_prompt_of_reply__refuses_part_of_a_sample(void **state)
{
    (void)state;
    fixture f = {0};
    assert_ok(dims_preset("debug", &f.d));
    arena_init(&f.rows, 0);
    row r = packed_row(&f), p;
    reply to = reply_to(&r, 1);
    assert_ok(arena_calloc(&f.rows, (size_t)r.n_docs, sizeof(int32_t), (void **)&r.doc_prefix));
    r.doc_prefix[0] = r.doc_part[0] = -1;
    assert_fails(ST_BAD_INPUT, prompt_of_reply(&r, &to, &f.rows, &p),
                 "sample 8 shares its beginning");
    assert_fails(ST_BAD_INPUT, prompt_whole_document(&r, 0, &f.rows, &p), "shares its beginning");
    arena_done(&f.rows);
}

/* The prompt of a later reply has the reference of the earlier ones, and only the pictures that
 * were shown so far. */
static void test_prompt_of_reply__ends_before_a_later_reply(void **state)
{
    (void)state;
    fixture f = {0};
    assert_ok(dims_preset("debug", &f.d));
    arena_init(&f.rows, 0);
    row r = packed_row(&f), p;
    const int64_t begin = r.cu_seqlens[1];
    reply all[4];
    int64_t between = begin; /* the text token after the first picture of document 1 */
    while (r.visual_row[between] < 0)
        between++;
    while (r.visual_row[between] >= 0)
        between++;
    r.labels[between] = r.input_ids[between];
    assert_int_equal(replies_of_row(&r, all), 4);
    assert_ok(prompt_of_reply(&r, &all[1], &f.rows, &p));
    assert_int_equal(p.n_tokens, between - begin);
    assert_int_equal(p.n_items, 1);
    assert_int_equal(p.n_patches, 16);
    assert_ok(row_check(&p, "prompt"));
    assert_ok(prompt_of_reply(&r, &all[2], &f.rows, &p));
    assert_int_equal(p.n_tokens, r.cu_seqlens[2] - begin - 2);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(p.input_ids[between - begin], r.input_ids[between]);
    arena_done(&f.rows);
}

/* A row with prompt and answer as one document, whose targets are the tokens of the answer. */
static row forced_row(fixture *f, const row *r, int64_t doc, const token_list *answer)
{
    row p, out;
    int64_t extra = (int64_t)answer->count;
    const reply wanted = reply_to(r, doc);
    assert_ok(prompt_of_reply(r, &wanted, &f->rows, &p));
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

/* The token that follows a row of one document, by a forward pass over all of it. */
static int32_t next_word(session *s, const row *r)
{
    const backend_vtable *v = s->device->backend;
    const int32_t at = (int32_t)(r->n_tokens - 1);
    loss_sums sums = {s->sums.loss, s->sums.weight, s->sums.aux};
    int64_t vocab = s->dims.text.vocab, best = -1;
    device_batch *b;
    float *logits;
    int32_t *last;
    assert_ok(v->alloc(s->device, (size_t)vocab * sizeof *logits, (void **)&logits));
    assert_ok(v->alloc(s->device, sizeof *last, (void **)&last));
    assert_ok(v->to_device(s->stream, last, &at, sizeof at));
    assert_ok(stage_rows(s->stager, s->stream, r, 1, &b));
    assert_ok(model_forward(s->model, s->stream, b, &sums, NULL, NULL));
    assert_ok(model_logits(s->model, s->stream, last, 1, logits));
    assert_ok(v->wait(s->stream)); /* on the CPU the test can read device memory */
    for (int64_t i = 0; i < vocab; i++)
        if (i != s->dims.image_token && i != s->dims.video_token &&
            (best < 0 || logits[i] > logits[best]))
            best = i;
    v->release(s->device, logits);
    v->release(s->device, last);
    return (int32_t)best;
}

/* Generates the answer without a cache: one pass over the whole document for each token. */
static void recomputed_answer(fixture *f, session *s, const row *r, int64_t doc, token_list *out)
{
    int32_t id[NEW_TOKENS];
    *out = (token_list){.id = malloc(sizeof id), .capacity = NEW_TOKENS};
    assert_non_null(out->id);
    while (out->count < NEW_TOKENS) {
        row forced = forced_row(f, r, doc, out);
        int32_t word = next_word(s, &forced);
        if (word == s->dims.eos_token)
            break;
        out->id[out->count++] = word;
    }
}

static session session_of(fixture *f)
{
    session s = {.device = f->dev,
                 .stream = f->s,
                 .dims = f->d,
                 .params = f->p,
                 .model = f->m,
                 .stager = f->g,
                 .cap = f->o.cap,
                 .sums = {f->sums.loss, f->sums.weight, f->sums.aux}};
    mesh_alone(&s.mesh);
    return s;
}

static status open_generator(session *s)
{
    const generator_options o = {.stream = s->stream,
                                 .dims = &s->dims,
                                 .mesh = &s->mesh,
                                 .model = s->model,
                                 .prompts = s->stager,
                                 .cap = s->cap,
                                 .longest = s->cap.tokens};
    return generate_new(&o, &s->generator);
}

/* Answers all documents at once with cached keys and values; then again with ops that run on
 * capacities, and with room for only one prompt at a time. */
static void test_generate_answers__is_what_recomputing_chooses(void **state)
{
    (void)state;
    fixture f;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(&f, &d);
    row r = packed_row(&f);
    model_options o = {.training = false, .router_aux_coef = 0.1};
    batch_caps_for(&r, 1, 64, 64, &o.cap);
    fixture_model(&f, &o, false);
    session s = session_of(&f);
    token_list want[3], got[3];
    size_t words = 0;
    bool ended = false;
    s.dims.eos_token = -1;
    recomputed_answer(&f, &s, &r, 0, &want[0]);
    s.dims.eos_token = want[0].id[2]; /* so that this answer ends before the others */
    token_list_done(&want[0]);
    for (int64_t doc = 0; doc < 3; doc++) {
        recomputed_answer(&f, &s, &r, doc, &want[doc]);
        words += want[doc].count;
        ended |= want[doc].count < NEW_TOKENS;
    }
    assert_true(ended && words > NEW_TOKENS);
    const int64_t docs[3] = {2, 0, 1};
    const reply replies[3] = {reply_to(&r, 2), reply_to(&r, 0), reply_to(&r, 1)};
    for (int way = 0; way < 3; way++) {
        stager_fix_shapes(f.g, way == 1);
        s.cap.docs = way == 2 ? 1 : o.cap.docs;
        assert_ok(open_generator(&s));
        memset(got, 0, sizeof got);
        assert_ok(generate_answers(s.generator, &r, replies, 3, NEW_TOKENS, got));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(got[i].count, want[docs[i]].count);
            assert_memory_equal(got[i].id, want[docs[i]].id, got[i].count * sizeof(int32_t));
            token_list_done(&got[i]);
        }
        generate_free(&s.generator);
    }
    for (int i = 0; i < 3; i++)
        token_list_done(&want[i]);
    fixture_close(&f);
}

/* Counts the rows that the routers see, which is how much is computed for an answer beyond its
 * prompt. */
static int64_t rows_seen;
static status (*route_below)(stream *, const route_fwd_args *);

static status count_rows(stream *s, const route_fwd_args *a)
{
    rows_seen += a->tokens;
    return route_below(s, a);
}

static void test_generate_answers__each_word_costs_one_token(void **state)
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
    session s = session_of(&f);
    s.dims.eos_token = -1;
    assert_ok(open_generator(&s));
    ops_table counting = *f.s->ops;
    route_below = counting.route_fwd;
    counting.route_fwd = count_rows;
    f.s->ops = &counting;
    token_list got[3] = {0};
    rows_seen = 0;
    const reply replies[3] = {reply_to(&r, 0), reply_to(&r, 1), reply_to(&r, 2)};
    assert_ok(generate_answers(s.generator, &r, replies, 3, NEW_TOKENS, got));
    int64_t prompts = r.n_tokens - 3 * 2; /* without the targets */
    assert_int_equal(rows_seen, d.text.layers * (prompts + 3 * (NEW_TOKENS - 1)));
    for (int i = 0; i < 3; i++)
        token_list_done(&got[i]);
    generate_free(&s.generator);
    fixture_close(&f);
}

static tokenizer *golden_tokenizer(void)
{
    const char *source = getenv("TESSERA_SOURCE");
    char path[STATUS_PATH_MAX];
    tokenizer *t = NULL;
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    assert_ok(tokenizer_load(path, &t));
    return t;
}

/* A rank that fails to print an answer must still count as many questions as the others; otherwise
 * the ranks would generate different documents of the next row. */
static void test_answers__are_counted_even_if_one_fails(void **state)
{
    (void)state;
    static const char reference[] =
        "{\"question_type\":\"q\",\"answer_type\":\"a\",\"answers\":[\"yes\"]}";
    char references[512];
    fixture f;
    model_dims d;
    vqa_tally tally[2];
    conf c = {.eval_generate = 4};
    answers a[2];
    reply replies[3];
    assert_ok(dims_preset("debug", &d));
    fixture_open(&f, &d);
    row r = packed_row(&f);
    assert_int_equal(replies_of_row(&r, replies), 3);
    model_options o = {.training = false};
    batch_caps_for(&r, 1, 64, 64, &o.cap);
    fixture_model(&f, &o, false);
    session s = session_of(&f);
    s.conf = &c;
    s.tokenizer = golden_tokenizer();
    assert_ok(open_generator(&s));
    memset(tally, 0, sizeof tally);
    for (int fails = 0; fails < 2; fails++) {
        a[fails] = (answers){.session = &s, .show = 4, .tally = &tally[fails]};
        for (int turn = 0; turn < 2; turn++) {
            snprintf(references, sizeof references, "[%s,%s,%s]", fails ? "{}" : reference,
                     reference, reference);
            r.references = references;
            assert_ok(answers_row(&a[fails], &r, replies, 3));
            assert_int_equal(a[fails].judged, turn == 0 ? 3 : 4);
            assert_int_equal(a[fails].show, turn == 0 ? 1 : 0); /* 4 are asked for: 3 and 1 */
        }
        assert_int_equal(tally[fails].all.count, fails ? 0 : 4);
        assert_int_equal(a[fails].trouble.code, fails ? ST_BAD_INPUT : ST_OK);
    }
    tokenizer_free(&s.tokenizer);
    generate_free(&s.generator);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_of_reply__is_the_document_alone),
        cmocka_unit_test(test_prompt_of_reply__refuses_part_of_a_sample),
        cmocka_unit_test(test_prompt_of_reply__ends_before_a_later_reply),
        cmocka_unit_test(test_generate_answers__is_what_recomputing_chooses),
        cmocka_unit_test(test_generate_answers__each_word_costs_one_token),
        cmocka_unit_test(test_answers__are_counted_even_if_one_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
