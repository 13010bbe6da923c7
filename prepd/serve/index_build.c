/* index_build.c: builds the index by leases to the workers: first the headers of images, then the
 * token counts of texts, which may need the times of clips. A file that kills its workers is
 * refused like a file that cannot be read. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

enum {
    IMAGES_PER_LEASE = 32,          /* reading so many headers takes milliseconds */
    TEXT_BYTES_PER_LEASE = 1 << 20, /* limits a lease of long texts */
};
static const int64_t TELL_EVERY_NS = 2000000000; /* for a line; a bar moves ten times as often */

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

status index_build_finish(dispatch *d, source *s)
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

/* Why a clip of the sample cannot be used; NULL if all can. Without the clip its text is not known,
 * since the times of its frames are part of the text. */
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

/* Makes a lease of texts. Samples that the adapter refuses are recorded at once; the others go to a
 * worker. */
static status produce_texts(dispatch *d, source *s, lease **out)
{
    index_build *b = &s->build;
    int64_t item[INDEX_LEASE_ITEMS], n = 0, bytes = 0;
    arena *a = &d->scratch;
    arena_reset(a);
    for (; n < INDEX_LEASE_ITEMS && bytes < TEXT_BYTES_PER_LEASE &&
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
        return index_build_finish(d, s);
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

status index_build_poison(dispatch *d, lease *l, int64_t item, const char *cause)
{
    source *s = l->owner;
    if (l->kind == LEASE_IMAGES) {
        /* Size and time are recorded as well, so that the refusal holds until the file changes. */
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
    return index_build_finish(d, s);
}
