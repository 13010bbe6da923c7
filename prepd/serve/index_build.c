/* index_build.c: the index, built record by record by the workers: headers of images, token counts
 * of texts. A file that kills its workers is refused like one that can not be read. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

enum {
    IMAGES_PER_LEASE = 32,          /* a header read each: milliseconds */
    TEXTS_PER_LEASE = 128,          /* keeps a lease near 64 KiB of JSON */
    TEXT_BYTES_PER_LEASE = 1 << 20, /* where texts are long */
};
static const int64_t TELL_EVERY_NS = 2000000000; /* progress lines; a bar moves ten times faster */

status index_build_start(source *s)
{
    int64_t samples = s->data->v->samples(s->data), images = s->data->v->images(s->data);
    TRY(index_new(samples, images, &s->index));
    index_identify(s->index, dataset_contents(s->data));
    s->build = (index_build){.src = s,
                             .active = true,
                             .left = samples + images,
                             .images_left = images,
                             .started_ns = clock_ns(),
                             .told_ns = clock_ns()};
    if (s->build.left == 0) {
        s->build.active = false;
        return source_index_done(s);
    }
    return ST_OK;
}

static status finish_if_done(dispatch *d, source *s)
{
    if (!s->build.active || s->build.left > 0)
        return ST_OK;
    s->build.active = false;
    index_build_progress(d, s, true);
    return source_index_done(s);
}

void index_build_progress(dispatch *d, source *s, bool last)
{
    index_build *b = &s->build;
    int64_t now = clock_ns(), total = index_samples(s->index) + index_images(s->index);
    bool bar = !d->quiet && isatty(STDERR_FILENO);
    double seconds = (double)(now - b->started_ns) / 1e9;
    if (!last && now - b->told_ns < (bar ? TELL_EVERY_NS / 10 : TELL_EVERY_NS))
        return;
    b->told_ns = now;
    if (bar) {
        enum { WIDTH = 40 };
        char line[WIDTH + 1];
        int full = total ? (int)((total - b->left) * WIDTH / total) : WIDTH;
        memset(line, '.', WIDTH);
        memset(line, '#', (size_t)full);
        line[WIDTH] = 0;
        fprintf(stderr, "\rindex %s [%s] %3d%%%s", s->name, line, full * 100 / WIDTH,
                last ? "\n" : "");
        fflush(stderr);
    }
    if (last)
        log_info("index built section=%s samples=%lld images=%lld seconds=%.1f", s->name,
                 (long long)index_samples(s->index), (long long)index_images(s->index), seconds);
    else if (!bar)
        log_info("index building section=%s done=%lld of=%lld seconds=%.0f", s->name,
                 (long long)(total - b->left), (long long)total, seconds);
}

/* Why a clip of the sample can not be used: then its text, with the times of the frames, is not
 * known. */
static const char *bad_clip(const source *s, const sample *smp)
{
    for (int32_t k = 0; k < smp->n_images; k++) {
        index_image im;
        image_place place;
        index_image_get(s->index, smp->images[k], &im);
        if (!im.cause)
            continue;
        dataset_image_place(s->data, smp->images[k], &place);
        if (place.video || place.n_frames)
            return im.cause;
    }
    return NULL;
}

/* Samples the adapter refuses are recorded at once; the others go to a worker. */
static status produce_texts(dispatch *d, source *s, lease **out)
{
    index_build *b = &s->build;
    int64_t item[TEXTS_PER_LEASE], n = 0, bytes = 0;
    arena *a = &d->scratch;
    arena_reset(a);
    for (; n < TEXTS_PER_LEASE && bytes < TEXT_BYTES_PER_LEASE &&
           b->next_sample < index_samples(s->index);
         b->next_sample++) {
        sample smp;
        TRY(s->data->v->outline(s->data, b->next_sample, a, &smp));
        const char *cause = smp.cause ? smp.cause : bad_clip(s, &smp);
        if (cause) {
            index_sample refused = {.cause = cause};
            TRY(index_put_sample(s->index, b->next_sample, &refused));
            b->left--;
        } else {
            item[n++] = b->next_sample;
            bytes += smp.text_bytes;
        }
    }
    if (n == 0)
        return finish_if_done(d, s);
    return lease_new(&d->book, LEASE_TEXTS, s, 0, item, n, out);
}

status index_build_produce(dispatch *d, source *s, lease **out)
{
    index_build *b = &s->build;
    *out = NULL;
    if (!b->active)
        return ST_OK;
    if (b->next_image < index_images(s->index)) {
        int64_t item[IMAGES_PER_LEASE], n = 0;
        while (n < IMAGES_PER_LEASE && b->next_image < index_images(s->index))
            item[n++] = b->next_image++;
        return lease_new(&d->book, LEASE_IMAGES, s, 0, item, n, out);
    }
    if (b->images_left == 0 && b->next_sample < index_samples(s->index))
        return produce_texts(d, s, out);
    return ST_OK;
}

/* A record as a worker told it. */
typedef struct told {
    index_image image;
    index_sample text;
    uint64_t facts;
} told;

static uint64_t facts_of(const int64_t *value, size_t n)
{
    const hash128 h = hash_bytes(value, n * sizeof(*value));
    uint64_t out;
    memcpy(&out, h.bytes, sizeof(out));
    return out;
}

/* Two workers that found a file bad may say so in other words. */
static uint64_t facts_of_bad(void)
{
    return facts_of(&(int64_t){-1}, 1);
}

static status read_size(const source *s, const json_value *r, const char *from, index_image *x)
{
    int64_t width = 0, height = 0;
    TRY(json_want_int(r, "width", from, &width));
    TRY(json_want_int(r, "height", from, &height));
    x->frames = json_int(json_find(r, "frames"), 0);
    x->fps = json_real(json_find(r, "fps"), 0);
    const int64_t most = x->frames ? INT32_MAX : s->c.image_input_pixels;
    if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX || width > most / height)
        return FAIL_IN(ST_PROTOCOL, from, "image of %lld x %lld pixels", (long long)width,
                       (long long)height);
    x->width = (int32_t)width;
    x->height = (int32_t)height;
    return ST_OK;
}

/* elsewhere: its copy of the file has another time; ours is what the next start compares with. */
static status read_image(const source *s, int64_t j, const json_value *r, bool elsewhere,
                         const char *from, told *out)
{
    index_image x = {.cause = json_text(json_find(r, "cause"), NULL)};
    TRY(json_want_int(r, "bytes", from, &x.file_bytes));
    TRY(json_want_int(r, "mtime", from, &x.mtime_ns));
    if (elsewhere && x.mtime_ns) {
        int64_t bytes;
        dataset_image_stat(s->data, j, &bytes, &x.mtime_ns);
    }
    if (!x.cause)
        TRY(read_size(s, r, from, &x));
    int64_t facts[] = {x.file_bytes, x.width, x.height, x.frames, 0};
    memcpy(&facts[4], &x.fps, sizeof(x.fps));
    out->image = x;
    out->facts = x.cause ? facts_of_bad() : facts_of(facts, sizeof(facts) / sizeof(*facts));
    return ST_OK;
}

static status read_text(const json_value *r, const char *from, told *out)
{
    int64_t tokens = 0, targets = 0;
    index_sample x = {.cause = json_text(json_find(r, "cause"), NULL)};
    if (!x.cause) {
        TRY(json_want_int(r, "tokens", from, &tokens));
        TRY(json_want_int(r, "targets", from, &targets));
        if (tokens < 1 || targets < 0 || targets > tokens || tokens > INT32_MAX)
            return FAIL_IN(ST_PROTOCOL, from, "text of %lld tokens with %lld targets",
                           (long long)tokens, (long long)targets);
        x.text_tokens = (int32_t)tokens;
        x.targets = (int32_t)targets;
    }
    out->text = x;
    out->facts = x.cause ? facts_of_bad() : facts_of((int64_t[]){tokens, targets}, 2);
    return ST_OK;
}

/* item [n], out [n]: all records of the message are read before the first counts. */
static status read_all(const lease *l, const int64_t *item, int64_t n, const json_value *records,
                       bool elsewhere, const char *from, told *out)
{
    const json_value *list;
    TRY(json_want_array(records, "records", from, &list));
    if ((int64_t)json_count(list) != n)
        return FAIL_IN(ST_PROTOCOL, from, "%zu records for a lease of %lld", json_count(list),
                       (long long)n);
    for (int64_t k = 0; k < n; k++) {
        const json_value *r = json_item(list, (size_t)k);
        if (l->kind == LEASE_IMAGES)
            TRY(read_image(l->owner, item[k], r, elsewhere, from, &out[k]));
        else
            TRY(read_text(r, from, &out[k]));
    }
    return ST_OK;
}

/* Those that count, into the index. */
static status put_settled(dispatch *d, lease *l, const int64_t *item, const told *t, int64_t n,
                          const worker_seat *w, const char *from)
{
    source *s = l->owner;
    bool settled[TEXTS_PER_LEASE];
    uint64_t facts[TEXTS_PER_LEASE];
    for (int64_t k = 0; k < n; k++)
        facts[k] = t[k].facts;
    TRY(claims_settle(d, l, item, facts, n, w, from, settled));
    for (int64_t k = 0; k < n; k++) {
        if (!settled[k])
            continue;
        if (l->kind == LEASE_IMAGES)
            TRY(index_put_image(s->index, item[k], &t[k].image));
        else
            TRY(index_put_sample(s->index, item[k], &t[k].text));
        s->build.left--;
        s->build.images_left -= l->kind == LEASE_IMAGES;
    }
    return ST_OK;
}

/* Takes all records of a lease, or of its one solo item, which is then done with. ST_PROTOCOL:
 * they are not such records. */
status index_build_take(dispatch *d, lease *l, const json_value *records, const worker_seat *w,
                        const char *from)
{
    const int64_t solo = lease_solo_item(l), n = solo >= 0 ? 1 : l->n_items;
    const int64_t *item = solo >= 0 ? l->untried : l->item;
    told t[TEXTS_PER_LEASE];
    const status st = read_all(l, item, n, records, !w->local, from, t);
    if (st == ST_BAD_INPUT) { /* said of a message, not of our data */
        status_note why = *status_last();
        why.code = ST_PROTOCOL;
        status_set(&why);
        return ST_PROTOCOL;
    }
    TRY(st);
    TRY(put_settled(d, l, item, t, n, w, from));
    if (solo >= 0)
        lease_drop_item(l, solo);
    else
        l->n_items = 0;
    return finish_if_done(d, l->owner);
}

status index_build_poison(dispatch *d, lease *l, int64_t item, const char *cause)
{
    source *s = l->owner;
    if (l->kind == LEASE_IMAGES) {
        /* Size and time are recorded, so that the verdict holds until the file changes. */
        index_image x = {.cause = cause};
        dataset_image_stat(s->data, item, &x.file_bytes, &x.mtime_ns);
        TRY(index_put_image(s->index, item, &x));
    } else {
        index_sample x = {.cause = cause};
        TRY(index_put_sample(s->index, item, &x));
    }
    lease_drop_item(l, item);
    s->build.left--;
    s->build.images_left -= l->kind == LEASE_IMAGES;
    return finish_if_done(d, s);
}
