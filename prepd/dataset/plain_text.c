/* plain_text.c: the adapter of plain text: C4-style records {"text": ...}, one per line, in .jsonl,
 * .jsonl.gz or .jsonl.zst. A sample is a document; all of it is trained. Memory: a place per
 * document; texts are read when they are wanted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/dataset/plain_text.h"

static const texts *as_texts(const dataset *d)
{
    return (const texts *)d;
}

static void text_close(dataset *base)
{
    texts *d = (texts *)base;
    if (!d)
        return;
    records_close(&d->files);
    text_pool_done(&d->causes);
    free(d->all);
    free(d);
}

/* Why the record is no document; NULL if it is one. */
static const char *fault_of(const json_value *v)
{
    const json_value *text = json_find(v, "text");
    if (!text)
        return "\"text\" is missing";
    if (json_typeof(text) != JSON_TEXT)
        return "\"text\" is no text";
    return json_text_size(text) == 0 ? "\"text\" is empty" : NULL;
}

static status on_record(void *user, const json_value *v, const record_place *at, const char *cause)
{
    texts *d = (texts *)user;
    text_document x = {.at = *at};
    if (d->limit && d->n >= d->limit)
        return FAIL(ST_END, "data.limit");
    TRY(array_room((void **)&d->all, d->n, &d->capacity, sizeof *d->all));
    const char *fault = cause ? NULL : fault_of(v);
    if (cause)
        TRY(text_pool_format(&d->causes, &x.cause, "%s", cause));
    if (fault)
        TRY(text_pool_format(&d->causes, &x.cause, "%s:%" PRId64 ": %s",
                             records_name(d->files, at->file), at->line, fault));
    d->all[d->n++] = x;
    return ST_OK;
}

static status compute_identity(texts *d)
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    hasher_add(h, "text", 4);
    hasher_add_u64(h, (uint64_t)d->n);
    status st = records_digest(d->files, h);
    d->identity = hasher_value(h);
    hasher_free(&h);
    return st;
}

/* Every file from its beginning to its end, twice: for its records and for its digest. */
static status read_all(texts *d, const conf *c)
{
    TRY(records_scan(d->files, on_record, d));
    if (d->n == 0)
        return FAIL_IN(ST_BAD_INPUT, c->data_path, "there is no record");
    TRY(compute_identity(d));
    text_cache_save(d, c);
    return ST_OK;
}

static status text_open(const conf *c, dataset **out)
{
    status st;
    if (c->data_group != GROUP_NONE)
        return FAIL(ST_CONFIG, "data.group is for data with pictures; data.format text needs none");
    texts *d = (texts *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    d->base.v = &dataset_text;
    d->limit = c->data_limit;
    TRY_OR(failed, records_open(c, &d->files));
    cache_lock lock = {0};
    text_cache_enter(d, c, &lock);
    st = text_cache_load(d, c) ? ST_OK : read_all(d, c);
    cache_lock_leave(&lock);
    TRY_OR(failed, st);
    d->random = records_random(d->files);
    *out = &d->base;
    return ST_OK;
failed:
    text_close(&d->base);
    return st;
}

static int64_t text_samples(const dataset *d)
{
    return as_texts(d)->n;
}

static int64_t text_images(const dataset *d)
{
    (void)d;
    return 0;
}

static const char *text_image_path(const dataset *d, int64_t j)
{
    (void)d;
    (void)j;
    return "";
}

static const char *text_root(const dataset *d)
{
    return records_folder(as_texts(d)->files);
}

static hash128 text_identity(const dataset *d)
{
    return as_texts(d)->identity;
}

static int64_t text_chunk(const dataset *d, int64_t i)
{
    return as_texts(d)->random ? -1 : records_chunk(as_texts(d)->files, &as_texts(d)->all[i].at);
}

static status text_outline(const dataset *base, int64_t i, arena *a, sample *out)
{
    const texts *d = as_texts(base);
    char name[320], *copy;
    if (i < 0 || i >= d->n)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, d->n);
    const text_document *x = &d->all[i];
    snprintf(name, sizeof name, "%.250s:%" PRId64, records_name(d->files, x->at.file), x->at.line);
    TRY(arena_strndup(a, name, strlen(name), &copy));
    *out = (sample){
        .id = (uint64_t)i,
        .name = copy,
        .cause = x->cause ? text_pool_at(&d->causes, x->cause) : NULL,
        .plain = true,
        .text_bytes = x->at.bytes,
    };
    return ST_OK;
}

static status text_get(const dataset *base, int64_t i, arena *a, sample *out)
{
    const texts *d = as_texts(base);
    sample x;
    json_value *v = NULL;
    char *copy;
    TRY(text_outline(base, i, a, &x));
    if (!x.cause) {
        TRY(records_read(d->files, &d->all[i].at, &v));
        const json_value *text = json_find(v, "text");
        const int64_t bytes = (int64_t)json_text_size(text);
        status st = fault_of(v) ? FAIL_IN(ST_BAD_INPUT, x.name, "changed while it was in use")
                                : arena_strndup(a, json_text(text, ""), (size_t)bytes, &copy);
        json_free(&v);
        TRY(st);
        TRY(arena_calloc(a, 1, sizeof(turn), (void **)&x.turns));
        TRY(arena_calloc(a, 1, sizeof(part), (void **)&x.turns->parts));
        x.n_turns = 1;
        x.turns->role = ROLE_ASSISTANT;
        x.turns->trained = true;
        x.turns->n_parts = 1;
        x.turns->parts[0] = (part){copy, bytes, -1};
    }
    *out = x;
    return ST_OK;
}

const dataset_vtable dataset_text = {
    .name = "text",
    .open = text_open,
    .close = text_close,
    .samples = text_samples,
    .sample = text_get,
    .outline = text_outline,
    .images = text_images,
    .image_path = text_image_path,
    .root = text_root,
    .chunk = text_chunk,
    .identity = text_identity,
};
