/* fixture.c: the small model and the rows of fixture.h. */
#include "tests/unit/trainer/model/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/model/pass_context.h"
#include "trainer/ops/open.h"

const document debug_documents[3] = {{"4 1x4x6 3 1x6x4 2", 11}, {"3 v2x4x4 2 + 2", 22}, {"10", 33}};

static double lively(const param *p, rng_key key, int64_t i)
{
    double n = rng_normal(key, (uint64_t)i);
    if (p->init == INIT_ONE)
        return 1 + 0.2 * n;
    if (p->init == INIT_ZERO)
        return 0.2 * n;
    if (p->group == GROUP_EXPERTS)
        return n / sqrt((double)p->shape[1]);
    if (strstr(p->name, "embed") && p->n_dims == 2) /* the token and position tables */
        return 0.7 * n;
    return n / sqrt((double)(p->count / p->shape[0]));
}

static void fill_params(fixture *f)
{
    for (int64_t i = 0; i < f->p->count; i++) {
        const param *p = &f->p->list[i];
        rng_key key = rng_key_make(5, p->name);
        double *v = malloc((size_t)p->n_local * sizeof *v);
        assert_non_null(v);
        for (int64_t j = 0, at; j < p->n_local; j++) {
            slice_run(&p->held, j, 1, &at);
            v[j] = lively(p, key, at);
        }
        assert_ok(params_write(p, f->s, 0, p->n_local, v));
        free(v);
    }
}

void fixture_alloc_anew(fixture *f)
{
    params_release(f->p, f->s);
    assert_ok(params_alloc(f->p, f->s, true));
    fill_params(f);
}

void fixture_open(fixture *f, const model_dims *d)
{
    fixture_open_rank(f, d, NULL);
}

void fixture_open_rank(fixture *f, const model_dims *d, const mesh *m)
{
    *f = (fixture){.d = *d, .mesh = m};
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &f->dev));
    assert_ok(f->dev->backend->stream_new(f->dev, &f->s));
    assert_ok(params_new(&f->d, &f->p));
    if (m)
        assert_ok(params_cut(f->p, &f->d, &m->layout, m->place));
    assert_ok(params_alloc(f->p, f->s, true));
    fill_params(f);
    void *sums[3];
    for (int i = 0; i < 3; i++)
        assert_ok(f->dev->backend->alloc(f->dev, sizeof(double), &sums[i]));
    f->sums = (loss_sums){sums[0], sums[1], sums[2]};
    arena_init(&f->rows, 0);
}

void fixture_close(fixture *f)
{
    model_free(&f->m, f->s);
    stager_free(&f->g, f->s);
    params_release(f->p, f->s);
    params_free(&f->p);
    f->dev->backend->release(f->dev, f->sums.loss);
    f->dev->backend->release(f->dev, f->sums.weight);
    f->dev->backend->release(f->dev, f->sums.aux);
    arena_done(&f->rows);
    f->dev->backend->stream_free(&f->s);
    device_close(&f->dev);
}

void fixture_model(fixture *f, const model_options *o, bool fixed_shapes)
{
    model_free(&f->m, f->s);
    stager_free(&f->g, f->s);
    row_share share = f->mesh ? row_share_of(f->mesh) : row_share_alone();
    f->o = *o;
    f->o.mesh = f->mesh;
    assert_ok(model_new(f->s, &f->d, f->p, &f->o, &f->m));
    assert_ok(stager_new_shared(f->s, &f->d, &o->cap, &share, &f->g));
    stager_mark(f->g, 0, o->router_aux_coef);
    stager_fix_shapes(f->g, fixed_shapes);
}

/* One word of a document's description. */
typedef struct part {
    int t, h, w; /* a grid; t = 0: h tokens of text, or one more frame */
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
    size_t n = strcspn(*text, " ");
    assert_true(n < sizeof word);
    memcpy(word, *text, n);
    word[n] = 0;
    *text += n;
    out->video = word[0] == 'v';
    out->next_frame = word[0] == '+';
    if (!out->next_frame && sscanf(word + out->video, "%dx%dx%d", &out->t, &out->h, &out->w) != 3) {
        out->h = atoi(word);
        out->t = 0;
    }
    return true;
}

/* Writes documents into r, or only counts what they need. */
typedef struct writer {
    row *r;
    const model_dims *d;
    bool write;
    int64_t tokens, items, patches, video_patches, merged;
} writer;

static void put_token(writer *w, int32_t id, int32_t visual, const int32_t position[3])
{
    if (w->write) {
        w->r->input_ids[w->tokens] = id;
        w->r->visual_row[w->tokens] = visual;
        for (int a = 0; a < 3; a++)
            w->r->position_ids[a * w->r->n_tokens + w->tokens] = position[a];
    }
    w->tokens++;
}

static void put_frame(writer *w, const part *grid, bool video, int32_t *cur)
{
    for (int32_t y = 0; y < grid->h / 2; y++)
        for (int32_t x = 0; x < grid->w / 2; x++)
            put_token(w, video ? w->d->video_token : w->d->image_token, (int32_t)w->merged++,
                      (int32_t[]){*cur, *cur + y, *cur + x});
    *cur += (grid->h > grid->w ? grid->h : grid->w) / 2;
}

/* `item` counts from the start of the document, so that a document has the same pixels in any
 * row. */
static void put_pixels(writer *w, const part *grid, bool video, rng_key key, uint64_t item)
{
    int64_t n = (int64_t)grid->t * grid->h * grid->w;
    int64_t at = video ? w->video_patches : w->patches;
    int64_t bytes = video ? VIDEO_PATCH_BYTES : PATCH_BYTES;
    if (w->write) {
        uint8_t *to = (video ? w->r->pixels_video : w->r->pixels) + at * bytes;
        for (int64_t i = 0; i < n * bytes; i++)
            to[i] = (uint8_t)rng_below(key, item * 1000000 + (uint64_t)i, 256);
        int32_t *g = w->r->grid_thw + 3 * w->items;
        g[0] = grid->t;
        g[1] = grid->h;
        g[2] = grid->w;
    }
    *(video ? &w->video_patches : &w->patches) += n;
    w->items++;
}

static void put_document(writer *w, const document *doc)
{
    rng_key key = rng_key_make(doc->seed, "document");
    const char *text = doc->text;
    int32_t cur = 0;
    part now, grid = {0};
    for (uint64_t n = 0, item = 0; read_part(&text, &now);) {
        if (now.next_frame) {
            put_frame(w, &grid, true, &cur);
        } else if (now.t > 0) {
            grid = now;
            put_pixels(w, &grid, now.video, key, item++);
            put_frame(w, &grid, now.video, &cur);
        } else {
            for (int i = 0; i < now.h; i++, cur++)
                put_token(w, (int32_t)rng_below(key, n++, 1900) + 3, -1,
                          (int32_t[]){cur, cur, cur});
        }
    }
}

/* Gives labels to three quarters of the text tokens, never to the first token of a document. */
static void put_labels(row *r, int64_t doc, uint64_t seed)
{
    rng_key key = rng_key_make(seed, "labels");
    for (int64_t t = r->cu_seqlens[doc] + 1; t < r->cu_seqlens[doc + 1]; t++) {
        uint64_t n = (uint64_t)(t - r->cu_seqlens[doc]);
        if (r->loss_weight)
            r->loss_weight[t] = (float)(0.5 + rng_uniform(key, 1000 + n));
        if (r->visual_row[t] < 0 && rng_below(key, n, 4) > 0)
            r->labels[t] = r->input_ids[t];
    }
}

row fixture_row(fixture *f, const document *docs, int n, bool weights)
{
    row r = {.n_docs = n};
    writer count = {.r = &r, .d = &f->d};
    for (int i = 0; i < n; i++)
        put_document(&count, &docs[i]);
    r.n_tokens = count.tokens;
    r.n_items = count.items;
    r.n_patches = count.patches;
    r.n_video_patches = count.video_patches;
    assert_ok(row_alloc(&r, &f->rows, weights ? ROW_WEIGHTS : 0));
    writer w = {.r = &r, .d = &f->d, .write = true};
    for (int i = 0; i < n; i++) {
        put_document(&w, &docs[i]);
        r.cu_seqlens[i + 1] = (int32_t)w.tokens;
        r.doc_sample_id[i] = docs[i].seed;
        put_labels(&r, i, docs[i].seed);
    }
    assert_ok(row_check(&r, "fixture"));
    return r;
}

static double read_double(fixture *f, const void *p)
{
    double v = 0;
    assert_ok(f->dev->backend->to_host(f->s, &v, p, sizeof v));
    assert_ok(f->dev->backend->wait(f->s));
    return v;
}

double fixture_aux(fixture *f)
{
    double v = 0;
    assert_ok(params_read(f->sums.aux, f->s, 0, 1, &v));
    return v;
}

static device_batch *stage(fixture *f, const row *rows, int64_t n_rows)
{
    device_batch *b = NULL;
    assert_ok(stage_rows(f->g, f->s, rows, n_rows, &b));
    assert_ok(f->dev->backend->zero(f->s, f->sums.loss, sizeof(double)));
    assert_ok(f->dev->backend->zero(f->s, f->sums.weight, sizeof(double)));
    return b;
}

static double loss_of(fixture *f, const device_batch *b)
{
    double loss = read_double(f, f->sums.loss);
    assert_true(fabs(read_double(f, f->sums.weight) - b->weight) <= 1e-6 * b->weight);
    if (f->o.router_aux_coef > 0)
        loss += f->o.router_aux_coef * b->weight * fixture_aux(f);
    return loss;
}

double fixture_forward_backward(fixture *f, const row *rows, int64_t n_rows)
{
    device_batch *b = stage(f, rows, n_rows);
    assert_ok(params_zero_grad(f->p, f->s));
    assert_ok(model_forward_backward(f->m, f->s, b, &f->sums));
    return loss_of(f, b);
}

double fixture_forward(fixture *f, const row *rows, int64_t n_rows)
{
    device_batch *b = stage(f, rows, n_rows);
    assert_ok(model_forward(f->m, f->s, b, &f->sums, NULL, NULL));
    return loss_of(f, b);
}

double *fixture_grad(fixture *f, const param *p)
{
    double *g = malloc((size_t)p->n_local * sizeof *g);
    assert_non_null(g);
    assert_ok(params_read(p->grad, f->s, 0, p->n_local, g));
    return g;
}
