/* vqav2.c: the adapter of the official VQAv2 layout: samples out of what vqa_read.c keeps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "prepd/dataset/vqa.h"

static const vqa *as_vqa(const dataset *d)
{
    return (const vqa *)d;
}

static void vqa_close(dataset *base)
{
    vqa *d = (vqa *)base;
    if (!d)
        return;
    text_pool_done(&d->texts);
    id_map_done(&d->by_question);
    id_map_done(&d->by_image);
    free(d->questions);
    free(d->image_paths);
    free(d->places);
    free(d->place_at);
    id_map_done(&d->place_of);
    free(d->order);
    free(d->samples);
    free(d);
}

/* A sample per question, in file order. */
static void group_none(vqa *d)
{
    for (int64_t i = 0; i < d->n_questions; i++) {
        d->order[i] = i;
        d->samples[i] = (vqa_sample){i, 1};
    }
    d->n_samples = d->n_questions;
}

/* The usable questions of a picture are the turns of one sample, which stands where the first of
 * them stood; an unusable question stays a sample of its own, with its cause. */
static status group_conversations(vqa *d, int64_t limit)
{
    int64_t *sample_of = (int64_t *)malloc((size_t)(d->n_images + 1) * sizeof *sample_of);
    int64_t *count = (int64_t *)calloc((size_t)d->n_images + 1, sizeof *count);
    if (!sample_of || !count) {
        free(sample_of);
        free(count);
        return FAIL(ST_NO_MEMORY, "no memory to group %" PRId64 " questions", d->n_questions);
    }
    for (int64_t j = 0; j < d->n_images; j++)
        sample_of[j] = -1;
    for (int64_t i = 0; i < d->n_questions; i++)
        if (!d->questions[i].cause)
            count[d->questions[i].image]++;
    int64_t next = 0; /* in order */
    for (int64_t i = 0; i < d->n_questions; i++) {
        const vqa_question *q = &d->questions[i];
        if (q->cause) {
            d->samples[d->n_samples++] = (vqa_sample){next, 1};
            d->order[next++] = i;
            continue;
        }
        int64_t *s = &sample_of[q->image];
        if (*s < 0) {
            *s = d->n_samples++;
            d->samples[*s] = (vqa_sample){next, 0};
            next += count[q->image];
        }
        vqa_sample *mine = &d->samples[*s];
        d->order[mine->first + mine->n++] = i;
    }
    free(sample_of);
    free(count);
    if (limit && d->n_samples > limit)
        d->n_samples = limit;
    return ST_OK;
}

static void add_text(hasher *h, const vqa *d, int64_t at, int64_t n)
{
    hasher_add_u64(h, (uint64_t)n);
    hasher_add(h, text_pool_at(&d->texts, at), (size_t)n);
}

/* Everything a sample can show, and nothing of where the folder is mounted. */
static status compute_identity(vqa *d, int group)
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    hasher_add(h, "vqav2", 5);
    hasher_add_u64(h, (uint64_t)group);
    add_text(h, d, d->suffix_at, (int64_t)strlen(text_pool_at(&d->texts, d->suffix_at)));
    hasher_add_u64(h, (uint64_t)d->n_images);
    for (int64_t j = 0; j < d->n_images; j++)
        add_text(h, d, d->image_paths[j],
                 (int64_t)strlen(text_pool_at(&d->texts, d->image_paths[j])));
    hasher_add_u64(h, (uint64_t)d->n_samples);
    for (int64_t s = 0; s < d->n_samples; s++) {
        hasher_add_u64(h, (uint64_t)d->samples[s].n);
        for (int32_t k = 0; k < d->samples[s].n; k++) {
            const vqa_question *q = &d->questions[d->order[d->samples[s].first + k]];
            hasher_add_u64(h, (uint64_t)q->id);
            hasher_add_u64(h, (uint64_t)q->image);
            add_text(h, d, q->text, q->text_bytes);
            add_text(h, d, q->answer, q->answer_bytes);
            add_text(h, d, q->cause, (int64_t)strlen(text_pool_at(&d->texts, q->cause)));
        }
    }
    d->identity = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}

/* Samples out of the questions. */
static status make_samples(vqa *d, const conf *c)
{
    d->order = (int64_t *)malloc((size_t)d->n_questions * sizeof *d->order);
    d->samples = (vqa_sample *)malloc((size_t)d->n_questions * sizeof *d->samples);
    if (!d->order || !d->samples)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " samples", d->n_questions);
    if (c->data_group == GROUP_CONVERSATION)
        TRY(group_conversations(d, c->data_limit));
    else
        group_none(d);
    return compute_identity(d, c->data_group);
}

/* What lies in the cache, if its samples are those it was made of. */
static status open_cached(const conf *c, vqa *d, bool *out_there)
{
    hash128 identity;
    *out_there = vqa_cache_load(d, c, &identity);
    if (!*out_there)
        return ST_OK;
    TRY(make_samples(d, c));
    *out_there = hash_equal(d->identity, identity);
    return ST_OK;
}

static status open_read(const conf *c, vqa *d)
{
    TRY(vqa_read(d, c, c->data_group == GROUP_CONVERSATION ? 0 : c->data_limit));
    TRY(text_pool_add(&d->texts, c->data_suffix, strlen(c->data_suffix), &d->suffix_at));
    TRY(make_samples(d, c));
    id_map_done(&d->by_question); /* only reading needs them */
    id_map_done(&d->by_image);
    id_map_done(&d->place_of);
    vqa_cache_save(d, c);
    return ST_OK;
}

static status new_vqa(const conf *c, vqa **out)
{
    vqa *d = (vqa *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    d->base.v = &dataset_vqav2;
    status st = vqa_find_files(c, &d->paths);
    if (st != ST_OK)
        vqa_close(&d->base);
    else
        *out = d;
    return st;
}

static status vqa_open(const conf *c, dataset **out)
{
    vqa *d = NULL;
    bool cached = false;
    if (c->data_overlong == OVERLONG_SPLIT)
        return FAIL(ST_CONFIG, "data.overlong split is for plain text; questions with a picture "
                               "cannot be split: use refuse");
    cache_lock lock = {0};
    TRY(new_vqa(c, &d));
    vqa_cache_enter(d, c, &lock);
    status st = open_cached(c, d, &cached);
    if (st == ST_OK && !cached) {
        vqa_close(&d->base); /* whatever a bad cache has left in it */
        d = NULL;
        st = new_vqa(c, &d);
        if (st == ST_OK)
            st = open_read(c, d);
    }
    cache_lock_leave(&lock);
    if (st == ST_OK)
        *out = &d->base;
    else if (d)
        vqa_close(&d->base);
    return st;
}

static int64_t vqa_samples(const dataset *d)
{
    return as_vqa(d)->n_samples;
}

static int64_t vqa_images(const dataset *d)
{
    return as_vqa(d)->n_images;
}

static const char *vqa_image_path(const dataset *d, int64_t j)
{
    return text_pool_at(&as_vqa(d)->texts, as_vqa(d)->image_paths[j]);
}

static void vqa_place(const dataset *base, int64_t j, image_place *out)
{
    const vqa *d = as_vqa(base);
    const bool packed = d->paths.picture_zip[0] != 0;
    snprintf(out->path, sizeof out->path, "%s",
             packed ? d->paths.picture_zip : vqa_image_path(base, j));
    out->offset = packed ? d->places[d->place_at[j]].offset : 0;
    out->bytes = packed ? d->places[d->place_at[j]].bytes : -1;
}

static const char *vqa_root(const dataset *d)
{
    return as_vqa(d)->paths.root;
}

static hash128 vqa_identity(const dataset *d)
{
    return as_vqa(d)->identity;
}

static status name_sample(const vqa *d, const vqa_sample *s, arena *a, const char **out)
{
    char text[128];
    const vqa_question *q = &d->questions[d->order[s->first]];
    if (s->n > 1)
        snprintf(text, sizeof text, "image %" PRId64 " (%d questions from %" PRId64 " on)",
                 q->image_id, s->n, q->id);
    else if (q->id || !q->cause)
        snprintf(text, sizeof text, "question %" PRId64, q->id);
    else
        snprintf(text, sizeof text, "question number %" PRId64 " of the file",
                 d->order[s->first] + 1);
    char *copy;
    TRY(arena_strndup(a, text, strlen(text), &copy));
    *out = copy;
    return ST_OK;
}

/* The question's text, with data.suffix after it. */
static status question_part(const vqa *d, const vqa_question *q, arena *a, part *out)
{
    const char *suffix = text_pool_at(&d->texts, d->suffix_at);
    size_t n = (size_t)q->text_bytes, n_suffix = strlen(suffix);
    const char *text = text_pool_at(&d->texts, q->text);
    if (n_suffix) {
        void *joined;
        TRY(arena_alloc(a, n + n_suffix + 1, &joined));
        memcpy(joined, text, n);
        memcpy((char *)joined + n, suffix, n_suffix + 1);
        text = (const char *)joined;
    }
    *out = (part){text, (int64_t)(n + n_suffix), -1};
    return ST_OK;
}

/* Question and answer as two turns; the picture goes before the first question. */
static status fill_turns(const vqa *d, const vqa_question *q, bool first, arena *a, turn *turns)
{
    void *parts;
    TRY(arena_calloc(a, 3, sizeof(part), &parts));
    part *p = (part *)parts;
    int n = 0;
    if (first)
        p[n++] = (part){NULL, 0, 0};
    TRY(question_part(d, q, a, &p[n++]));
    turns[0] = (turn){.role = ROLE_USER, .parts = p, .n_parts = n};
    p[n] = (part){text_pool_at(&d->texts, q->answer), q->answer_bytes, -1};
    turns[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = p + n, .n_parts = 1};
    return ST_OK;
}

static status vqa_outline(const dataset *base, int64_t i, arena *a, sample *out)
{
    const vqa *d = as_vqa(base);
    if (i < 0 || i >= d->n_samples)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, d->n_samples);
    const vqa_sample *s = &d->samples[i];
    const vqa_question *q = &d->questions[d->order[s->first]];
    sample x = {.id = (uint64_t)i};
    TRY(name_sample(d, s, a, &x.name));
    if (q->cause) {
        x.cause = text_pool_at(&d->texts, q->cause);
        *out = x;
        return ST_OK;
    }
    void *images;
    TRY(arena_calloc(a, 1, sizeof(int32_t), &images));
    x.images = (int32_t *)images;
    x.images[0] = q->image;
    x.n_images = 1;
    *out = x;
    return ST_OK;
}

static status vqa_get(const dataset *base, int64_t i, arena *a, sample *out)
{
    const vqa *d = as_vqa(base);
    sample x;
    TRY(vqa_outline(base, i, a, &x));
    if (x.cause) {
        *out = x;
        return ST_OK;
    }
    const vqa_sample *s = &d->samples[i];
    TRY(arena_calloc(a, 2 * (size_t)s->n, sizeof(turn), (void **)&x.turns));
    x.n_turns = 2 * s->n;
    for (int32_t k = 0; k < s->n; k++)
        TRY(fill_turns(d, &d->questions[d->order[s->first + k]], k == 0, a, x.turns + 2 * k));
    *out = x;
    return ST_OK;
}

static const char *vqa_reference(const dataset *base, int64_t i)
{
    const vqa *d = as_vqa(base);
    const vqa_sample *s = &d->samples[i];
    const vqa_question *q = &d->questions[d->order[s->first]];
    return s->n == 1 && q->reference ? text_pool_at(&d->texts, q->reference) : NULL;
}

static const char *vqa_holder(const dataset *d, int64_t j)
{
    (void)j;
    return as_vqa(d)->paths.holder[0] ? as_vqa(d)->paths.holder : vqa_root(d);
}

const dataset_vtable dataset_vqav2 = {
    .name = "vqav2",
    .open = vqa_open,
    .close = vqa_close,
    .samples = vqa_samples,
    .sample = vqa_get,
    .outline = vqa_outline,
    .images = vqa_images,
    .image_path = vqa_image_path,
    .place = vqa_place,
    .root = vqa_root,
    .holder = vqa_holder,
    .reference = vqa_reference,
    .identity = vqa_identity,
};
