/* webdataset.c: the adapter of WebDataset tars: consecutive members of one key (the name up to the
 * first dot of its last part) are a sample. Images: .jpg, .jpeg, .png, .webp; videos: .mp4, .m4v,
 * .mov, .mkv, .webm, .avi, .ts; the words: .json (a record as in conversations, or "caption"), else
 * .txt, else .cls. Headers are read once (web_scan.c); images are read by workers from their
 * places, words again when wanted. */
#include "prepd/dataset/webdataset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const webdataset *as_web(const dataset *d)
{
    return (const webdataset *)d;
}

static void web_close(dataset *base)
{
    webdataset *d = (webdataset *)base;
    if (!d)
        return;
    name_list_done(&d->shards);
    text_pool_done(&d->texts);
    free(d->prompt);
    free(d->samples);
    free(d->images);
    free(d->numbers);
    free(d);
}

static status web_open(const conf *c, dataset **out)
{
    status st;
    hasher *h = NULL;
    if (c->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG, "data.group conversation is for data.format vqav2; use none");
    if (c->data_overlong == OVERLONG_SPLIT)
        return FAIL(ST_CONFIG, "data.overlong split is for data.format text: use refuse");
    webdataset *d = (webdataset *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    d->base.v = &dataset_webdataset;
    d->limit = c->data_limit;
    d->prompt = strdup(c->data_prompt);
    if (!d->prompt) {
        st = FAIL(ST_NO_MEMORY, "no memory for a text");
        goto done;
    }
    TRY_OR(done, chat_rules_of(c, &d->rules));
    TRY_OR(done, web_find_shards(d, c));
    TRY_OR(done, hasher_new(&h));
    hasher_add(h, "webdataset", 10);
    hasher_add_u64(h, (uint64_t)c->data_loss_on);
    hasher_add_u64(h, c->data_trim);
    hasher_add_text(h, c->data_stage_weights);
    hasher_add_text(h, c->data_prompt);
    TRY_OR(done, web_scan(d, h));
    hasher_add_u64(h, (uint64_t)d->n);
    if (d->any_video)
        hasher_add(h, "videos", 6); /* which once were left alone */
    d->identity = hasher_value(h);
    d->numbers = (int32_t *)malloc(((size_t)d->n_images + 1) * sizeof *d->numbers);
    if (!d->numbers) {
        st = FAIL(ST_NO_MEMORY, "no memory for a data set");
        goto done;
    }
    for (int64_t j = 0; j < d->n_images; j++)
        d->numbers[j] = (int32_t)j;
    if (d->n == 0)
        st = FAIL_IN(ST_BAD_INPUT, c->data_path, "the tar files hold no sample");
done:
    hasher_free(&h);
    if (st == ST_OK)
        *out = &d->base;
    else
        web_close(&d->base);
    return st;
}

/* --- samples --- */

static int64_t web_samples(const dataset *d)
{
    return as_web(d)->n;
}

static int64_t web_images(const dataset *d)
{
    return as_web(d)->n_images;
}

static const char *web_image_path(const dataset *d, int64_t j)
{
    return text_pool_at(&as_web(d)->texts, as_web(d)->images[j].name);
}

static void web_place(const dataset *base, int64_t j, image_place *out)
{
    const webdataset *d = as_web(base);
    const web_image *x = &d->images[j];
    snprintf(out->path, sizeof out->path, "%s", name_list_at(&d->shards, x->shard));
    out->offset = x->at.offset;
    out->bytes = x->at.bytes;
    out->video = x->video;
}

static bool web_videos(const dataset *d)
{
    return as_web(d)->any_video;
}

static const char *web_root(const dataset *d)
{
    return as_web(d)->root;
}

static hash128 web_identity(const dataset *d)
{
    return as_web(d)->identity;
}

static status web_outline(const dataset *base, int64_t i, arena *a, sample *out)
{
    const webdataset *d = as_web(base);
    if (i < 0 || i >= d->n)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, d->n);
    const web_sample *s = &d->samples[i];
    (void)a;
    *out = (sample){
        .id = (uint64_t)i,
        .name = text_pool_at(&d->texts, s->name),
        .cause = s->cause ? text_pool_at(&d->texts, s->cause) : NULL,
        .images = d->numbers + s->first_image,
        .n_images = s->cause ? 0 : s->n_images,
        .text_bytes = s->words.bytes,
    };
    return ST_OK;
}

static status web_get(const dataset *base, int64_t i, arena *a, sample *out)
{
    const webdataset *d = as_web(base);
    sample x;
    TRY(web_outline(base, i, a, &x));
    if (x.cause) {
        *out = x;
        return ST_OK;
    }
    const web_sample *s = &d->samples[i];
    char path[2 * TAR_NAME_MAX], *bytes;
    chat_record r;
    snprintf(path, sizeof path, "%s/%s", d->root, name_list_at(&d->shards, s->shard));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st = web_read_place(fd, path, s->words, &bytes);
    close(fd);
    TRY(st);
    st = web_read_words(d, s, bytes, (size_t)s->words.bytes, x.name, a, &r);
    free(bytes);
    if (st != ST_OK)
        return status_context(st, "changed while it was in use");
    x.turns = r.turns;
    x.n_turns = r.n_turns;
    *out = x;
    return ST_OK;
}

const dataset_vtable dataset_webdataset = {
    .name = "webdataset",
    .open = web_open,
    .close = web_close,
    .samples = web_samples,
    .sample = web_get,
    .outline = web_outline,
    .images = web_images,
    .image_path = web_image_path,
    .place = web_place,
    .videos = web_videos,
    .root = web_root,
    .identity = web_identity,
};
