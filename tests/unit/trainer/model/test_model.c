/* test_model.c: the whole model in float. The same documents give the same loss and gradients
 * however they are divided into batches. Corner cases: no picture, a picture larger than the
 * position table, an expert without tokens, a row without targets, a pad token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/trainer/model/fixture.h"
#include "trainer/ops/table.h"

/* Limit on |a - b| / |b| of a tensor's gradient. Rounding in float through ten layers gives 2e-7 to
 * 3e-6; a wrong mask or border would give something of order 1. */
static const double rounding = 1e-5;

typedef struct result {
    double loss;
    double **grad; /* [n] */
    int64_t n;
} result;

static result run_rows(fixture *f, const row *rows, int64_t n_rows)
{
    result r = {.loss = fixture_forward_backward(f, rows, n_rows), .n = f->p->count};
    r.grad = calloc((size_t)r.n, sizeof *r.grad);
    for (int64_t i = 0; i < r.n; i++)
        r.grad[i] = fixture_grad(f, &f->p->list[i]);
    return r;
}

static void result_add(result *to, const result *from, const fixture *f)
{
    to->loss += from->loss;
    for (int64_t i = 0; i < to->n; i++)
        for (int64_t j = 0; j < f->p->list[i].count; j++)
            to->grad[i][j] += from->grad[i][j];
}

static void result_done(result *r)
{
    for (int64_t i = 0; i < r->n; i++)
        free(r->grad[i]);
    free(r->grad);
}

static double measure_difference(const double *a, const double *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

static void assert_same(const fixture *f, const result *a, const result *b, double tolerance)
{
    double worst = fabs(a->loss - b->loss) / fabs(b->loss);
    const char *name = "loss";
    for (int64_t i = 0; i < f->p->count; i++) {
        double d = measure_difference(a->grad[i], b->grad[i], f->p->list[i].count);
        if (!(d <= worst)) {
            worst = d;
            name = f->p->list[i].name;
        }
    }
    print_message("largest difference %.2g in %s\n", worst, name);
    if (!(worst <= tolerance))
        fail_msg("%s differs by %.3g, allowed %.3g", name, worst, tolerance);
}

static void open_debug(fixture *f)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    fixture_open(f, &d);
}

static model_options options_for(const row *rows, int64_t n, int64_t token_step, int64_t patch_step)
{
    model_options o = {.training = true};
    batch_caps_for(rows, n, token_step, patch_step, &o.cap);
    return o;
}

/* The three documents packed in one row, in three micro-batches, as three rows of one micro-batch,
 * and padded to a larger bucket with every op running on capacities. */
static void test_model__packed_unpacked_and_padded_agree(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row packed = fixture_row(&f, debug_documents, 3, true);
    row single[3];
    for (int i = 0; i < 3; i++)
        single[i] = fixture_row(&f, &debug_documents[i], 1, true);

    model_options o = options_for(&packed, 1, 1, 4);
    fixture_model(&f, &o, false);
    result want = run_rows(&f, &packed, 1);
    result rows = run_rows(&f, single, 3);
    assert_same(&f, &rows, &want, rounding);
    result sum = run_rows(&f, &single[0], 1);
    for (int i = 1; i < 3; i++) {
        result one = run_rows(&f, &single[i], 1);
        result_add(&sum, &one, &f);
        result_done(&one);
    }
    assert_same(&f, &sum, &want, rounding);

    o = options_for(&packed, 1, 64, 128);
    o.cap.docs += 3;
    o.cap.frames += 2;
    o.cap.targets += 9;
    o.logit_rows = 8;
    fixture_model(&f, &o, true);
    result padded = run_rows(&f, &packed, 1);
    assert_same(&f, &padded, &want, rounding);

    row reversed = fixture_row(
        &f, (const document[]){debug_documents[2], debug_documents[1], debug_documents[0]}, 3,
        true);
    result other = run_rows(&f, &reversed, 1);
    assert_same(&f, &other, &want, rounding);
    result_done(&want);
    result_done(&rows);
    result_done(&sum);
    result_done(&padded);
    result_done(&other);
    fixture_close(&f);
}

/* The same input gives the same bits, whatever the buffers held before. */
static void test_model__step_depends_on_nothing_left_in_memory(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row big = fixture_row(&f, debug_documents, 3, false);
    row text = fixture_row(&f, (const document[]){{"7", 3}, {"9", 4}}, 2, false);
    model_options o = options_for(&big, 1, 1, 4);
    fixture_model(&f, &o, false);
    result first = run_rows(&f, &text, 1);
    result other = run_rows(&f, &big, 1);
    result second = run_rows(&f, &text, 1);
    assert_same(&f, &second, &first, 0);
    result_done(&first);
    result_done(&other);
    result_done(&second);
    fixture_close(&f);
}

static double size_of(const fixture *f, const result *r, const char *name)
{
    const param *p = params_find(f->p, name);
    assert_non_null(p);
    double sum = 0;
    for (int64_t j = 0; j < p->count; j++)
        sum += r->grad[p - f->p->list][j] * r->grad[p - f->p->list][j];
    return sqrt(sum);
}

static void test_model__no_image_gives_no_vision_gradient(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, &(const document){"12", 5}, 1, false);
    model_options o = options_for(&r, 1, 1, 4);
    assert_int_equal(o.cap.patches, 0);
    fixture_model(&f, &o, false);
    result without = run_rows(&f, &r, 1);
    assert_true(size_of(&f, &without, "model.visual.blocks.0.norm1.weight") == 0);
    assert_true(size_of(&f, &without, "lm_head.weight") > 0);
    o.cap.patches = 16; /* the same text in a batch with room for pictures */
    o.cap.frames = 2;
    fixture_model(&f, &o, true);
    result padded = run_rows(&f, &r, 1);
    assert_same(&f, &padded, &without, rounding);
    result_done(&without);
    result_done(&padded);
    fixture_close(&f);
}

/* A picture of 20 x 12 patches on the debug model's position table of 8 x 8. */
static void test_model__image_beyond_the_position_table(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, &(const document){"3 1x20x12 6", 6}, 1, false);
    model_options o = options_for(&r, 1, 1, 4);
    fixture_model(&f, &o, false);
    result got = run_rows(&f, &r, 1);
    assert_true(isfinite(got.loss));
    const param *table = params_find(f.p, "model.visual.pos_embed.weight");
    const double *g = got.grad[table - f.p->list];
    int64_t touched = 0;
    for (int64_t i = 0; i < 64; i++)
        for (int64_t j = 0; j < 64; j++)
            touched += g[i * 64 + j] != 0;
    assert_int_equal(touched, 64 * 64); /* a larger picture uses every entry */
    result_done(&got);
    fixture_close(&f);
}

/* Three tokens with four choices each cannot use all of sixteen experts. */
static void test_model__expert_without_tokens(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, &(const document){"3", 7}, 1, false);
    r.labels[1] = 5;
    model_options o = options_for(&r, 1, 1, 4);
    fixture_model(&f, &o, false);
    result got = run_rows(&f, &r, 1);
    const int32_t *count = model_expert_count(f.m);
    const param *p = params_find(f.p, "model.language_model.layers.2.mlp.experts.gate_up_proj");
    const double *g = got.grad[p - f.p->list];
    int64_t each = p->count / 16, empty = 0, slots = 0;
    for (int64_t e = 0; e < 16; e++) {
        double size = 0;
        for (int64_t j = 0; j < each; j++)
            size += fabs(g[e * each + j]);
        slots += count[2 * 16 + e];
        empty += count[2 * 16 + e] == 0;
        assert_true(isfinite(size));
        if (count[2 * 16 + e] == 0)
            assert_true(size == 0);
    }
    assert_int_equal(slots, 3 * 4);
    assert_true(empty >= 4);
    result_done(&got);
    fixture_close(&f);
}

static void test_model__no_target_is_loss_zero(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, false), empty = {0};
    for (int64_t t = 0; t < r.n_tokens; t++)
        r.labels[t] = NO_LABEL;
    model_options o = options_for(&r, 1, 1, 4);
    fixture_model(&f, &o, false);
    result got = run_rows(&f, &r, 1);
    assert_true(got.loss == 0);
    for (int64_t i = 0; i < f.p->count; i++)
        assert_true(size_of(&f, &got, f.p->list[i].name) == 0);
    result none = run_rows(&f, &empty, 1); /* such a row fills up the last step of a run */
    assert_true(none.loss == 0);
    result_done(&got);
    result_done(&none);
    fixture_close(&f);
}

/* nll, best and logits of a forward agree with each other and with the loss. */
static void test_model__forward_outputs_agree(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, true);
    model_options o = options_for(&r, 1, 1, 4);
    o.training = false;
    o.logit_rows = 5;
    fixture_model(&f, &o, false);
    device_batch *b = NULL;
    void *nll, *best, *logits;
    int64_t vocab = f.d.text.vocab, n = o.cap.targets;
    assert_ok(f.dev->backend->alloc(f.dev, (size_t)n * sizeof(float), &nll));
    assert_ok(f.dev->backend->alloc(f.dev, (size_t)n * sizeof(int32_t), &best));
    assert_ok(f.dev->backend->alloc(f.dev, (size_t)(n * vocab) * sizeof(float), &logits));
    assert_ok(stage_rows(f.g, f.s, &r, 1, &b));
    assert_ok(f.dev->backend->zero(f.s, f.sums.loss, sizeof(double)));
    assert_ok(model_forward(f.m, f.s, b, &f.sums, nll, best));
    assert_ok(model_logits(f.m, f.s, b->target_token, b->targets, logits));
    double sum = 0;
    for (int64_t i = 0; i < b->targets; i++) {
        const float *z = (const float *)logits + i * vocab;
        int64_t top = 0;
        double total = 0;
        for (int64_t j = 0; j < vocab; j++)
            top = z[j] > z[top] ? j : top;
        for (int64_t j = 0; j < vocab; j++)
            total += exp((double)z[j] - z[top]);
        double want = log(total) + z[top] - z[b->target_label[i]];
        assert_true(fabs(((float *)nll)[i] - want) < 1e-4);
        assert_int_equal(((int32_t *)best)[i], top);
        sum += want * ((float *)b->target_weight)[i];
    }
    assert_true(fabs(*f.sums.loss - sum) < 1e-5 * sum);
    f.dev->backend->release(f.dev, nll);
    f.dev->backend->release(f.dev, best);
    f.dev->backend->release(f.dev, logits);
    o.training = true; /* training must give the same loss */
    fixture_model(&f, &o, false);
    assert_true(fabs(fixture_forward_backward(&f, &r, 1) - sum) < 1e-5 * sum);
    fixture_close(&f);
}

/* Two documents that share a picture (data.group shared_image) compute as if each had its own. */
static void test_model__shared_visual_rows(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    const document twice[2] = {{"3 1x4x4 5", 8}, {"3 1x4x4 5", 8}};
    row two = fixture_row(&f, twice, 2, false);
    row shared = two;
    int32_t visual[64];
    memcpy(visual, two.visual_row, (size_t)two.n_tokens * sizeof *visual);
    for (int64_t t = two.cu_seqlens[1]; t < two.n_tokens; t++)
        visual[t] = visual[t] >= 0 ? visual[t] - 4 : -1;
    shared.visual_row = visual;
    shared.n_items = 1;
    shared.n_patches = 16;
    memcpy(two.pixels + 16 * PATCH_BYTES, two.pixels, 16 * PATCH_BYTES);
    model_options o = options_for(&two, 1, 1, 4);
    fixture_model(&f, &o, false);
    result want = run_rows(&f, &two, 1);
    result got = run_rows(&f, &shared, 1);
    assert_same(&f, &got, &want, rounding);
    result_done(&want);
    result_done(&got);
    fixture_close(&f);
}

static void test_model__text_only(void **state)
{
    (void)state;
    fixture f;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.vision = (vision_dims){0};
    memset(d.text.mrope_section, 0, sizeof d.text.mrope_section);
    fixture_open(&f, &d);
    row r = fixture_row(&f, (const document[]){{"9", 1}, {"17", 2}}, 2, false);
    model_options o = options_for(&r, 1, 1, 4);
    fixture_model(&f, &o, false);
    result got = run_rows(&f, &r, 1);
    assert_true(isfinite(got.loss) && got.loss > 0);
    assert_true(size_of(&f, &got, "model.layers.0.self_attn.q_norm.weight") > 0);
    result_done(&got);
    fixture_close(&f);
}

/* What attention was called with, for one direction. */
typedef struct asked {
    int64_t tokens, segments, longest, calls;
} asked;

static asked heard[2][2]; /* [backward][causal] */

static void note_attention(bool backward, const attention_fwd_args *a)
{
    asked *h = &heard[backward][a->causal];
    const asked now = {a->tokens, a->segments, a->longest, h->calls + 1};
    if (h->calls)
        assert_true(h->tokens == now.tokens && h->segments == now.segments &&
                    h->longest == now.longest);
    *h = now;
}

static status hear_fwd(stream *s, const attention_fwd_args *a)
{
    note_attention(false, a);
    return s->dev->ops->attention_fwd(s, a);
}

static status hear_bwd(stream *s, const attention_bwd_args *a)
{
    note_attention(true, &(attention_fwd_args){.tokens = a->tokens,
                                               .segments = a->segments,
                                               .longest = a->longest,
                                               .causal = a->causal});
    return s->dev->ops->attention_bwd(s, a);
}

/* The bounds of a bucket reach attention in both directions, because cuDNN's choice of kernel
 * depends on them. */
static void test_model__attention_is_bounded_in_both_directions(void **state)
{
    (void)state;
    fixture f;
    open_debug(&f);
    row r = fixture_row(&f, debug_documents, 3, false);
    model_options o = options_for(&r, 1, 64, 128);
    o.cap.docs += 3;
    o.cap.frames += 2;
    fixture_model(&f, &o, true);
    batch_caps bucket = o.cap;
    bucket.longest = 40;
    bucket.frame = 24;
    stager_bucket(f.g, &bucket, 1);
    ops_table listening = *f.dev->ops;
    listening.attention_fwd = hear_fwd;
    listening.attention_bwd = hear_bwd;
    f.s->ops = &listening;
    memset(heard, 0, sizeof heard);
    fixture_forward_backward(&f, &r, 1);
    f.s->ops = f.dev->ops;
    for (int backward = 0; backward < 2; backward++) {
        const asked *text = &heard[backward][true], *vision = &heard[backward][false];
        assert_int_equal(text->calls, f.d.text.layers);
        assert_int_equal(text->tokens, bucket.tokens);
        assert_int_equal(text->segments, bucket.docs);
        assert_int_equal(text->longest, bucket.longest);
        assert_int_equal(vision->calls, f.d.vision.depth);
        assert_int_equal(vision->tokens, bucket.patches);
        assert_int_equal(vision->segments, bucket.frames);
        assert_int_equal(vision->longest, bucket.frame);
    }
    fixture_close(&f);
}

/* Runs the debug model, with its head tied or only equal to the embedding, and with or without a
 * pad token. */
static result run_with_pad(bool tied, bool has_pad, int64_t *inout_token, fixture *f)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.text.tied = tied;
    d.text.has_pad = has_pad;
    d.text.pad_token = *inout_token;
    fixture_open(f, &d);
    const param *embedding = params_get(f->p, "%sembed_tokens.weight", f->p->text_prefix);
    if (!tied) {
        double *values = malloc((size_t)embedding->count * sizeof *values);
        assert_non_null(values);
        assert_ok(params_read(embedding->value, f->s, 0, embedding->count, values));
        assert_ok(
            params_write(params_get(f->p, "lm_head.weight"), f->s, 0, embedding->count, values));
        free(values);
    }
    row r = fixture_row(f, debug_documents, 3, false);
    *inout_token = r.input_ids[0];
    model_options o = options_for(&r, 1, 1, 4);
    fixture_model(f, &o, false);
    return run_rows(f, &r, 1);
}

static const double *grad_of(const fixture *f, const result *r, const char *name, int64_t line)
{
    for (int64_t i = 0; i < r->n; i++)
        if (strstr(f->p->list[i].name, name))
            return r->grad[i] + line * f->d.text.hidden;
    fail_msg("no %s", name);
    return NULL;
}

/* The embedding of a pad token gets no gradient from the tokens that show it; if the head is tied,
 * it still gets the head's. Nothing else changes. */
static void test_model__pad_token_gets_no_gradient(void **state)
{
    (void)state;
    fixture f[4];
    result r[4];
    int64_t pad = 0;
    for (int i = 0; i < 4; i++) /* untied and tied, each without and with a pad token */
        r[i] = run_with_pad(i >= 2, i % 2, &pad, &f[i]);
    const int64_t n = f[0].d.text.hidden;
    const double *head = grad_of(&f[0], &r[0], "lm_head", pad);
    for (int i = 0; i < 4; i += 2) {
        const double *without = grad_of(&f[i], &r[i], "embed_tokens", pad);
        double *with = (double *)grad_of(&f[i + 1], &r[i + 1], "embed_tokens", pad);
        double zero[256] = {0};
        assert_true(n <= 256);
        assert_true(measure_difference(without, i ? head : zero, n) > 0.01);
        assert_true(measure_difference(with, i ? head : zero, n) <= (i ? rounding : 0));
        memcpy(with, without, (size_t)n * sizeof *with);
        assert_same(&f[i], &r[i + 1], &r[i], 0);
    }
    for (int i = 0; i < 4; i++) {
        result_done(&r[i]);
        fixture_close(&f[i]);
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
