/* index_build.c: builds the index by leases to the workers: first the headers of images, then the
 * token counts of texts, which may need the times of clips. A file that kills its workers is
 * refused like a file that cannot be read. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

enum {
    IMAGES_PER_LEASE = 32,          /* reading so many headers takes milliseconds */
    TEXT_BYTES_PER_LEASE = 1 << 20, /* limits a lease of long texts */
};
static const int64_t TELL_EVERY_NS = 2000000000; /* where there is no bar */

status index_build_start(source *section)
{
    int64_t samples = section->data->adapter->samples(section->data),
            images = section->data->adapter->images(section->data);
    TRY(index_new(samples, images, &section->index));
    index_identify(section->index, dataset_contents(section->data));
    section->build = (index_build){.src = section,
                                   .active = true,
                                   .left = samples + images,
                                   .images_left = images,
                                   .started_ns = clock_ns(),
                                   .told_ns = clock_ns()};
    if (section->build.left == 0) {
        section->build.active = false;
        return source_index_done(section);
    }
    return ST_OK;
}

status index_build_finish(source *section)
{
    if (!section->build.active || section->build.left > 0)
        return ST_OK;
    section->build.active = false;
    bar_clear();
    log_info("index built section=%s samples=%lld images=%lld seconds=%.1f", section->name,
             (long long)index_samples(section->index), (long long)index_images(section->index),
             (double)(clock_ns() - section->build.started_ns) / 1e9);
    return source_index_done(section);
}

/* Of two indexes that are built at once, the bar shows the one for training. */
static void draw_bar(const dispatch *d, const source *section, int64_t done, int64_t total)
{
    if (section != &d->train && d->train.build.active)
        return;
    bar_draw((double)done / (double)total, bar_seconds_left(section->build.started_ns, done, total),
             "index of %s: %lld of %lld", section->name, (long long)done, (long long)total);
}

void index_build_progress(const dispatch *d, source *section)
{
    index_build *b = &section->build;
    const int64_t now = clock_ns();
    const int64_t total = index_samples(section->index) + index_images(section->index);
    const int64_t done = total - b->left;
    draw_bar(d, section, done, total);
    if (bar_is_shown() || now - b->told_ns < TELL_EVERY_NS)
        return;
    b->told_ns = now;
    log_info("index building section=%s done=%lld of=%lld seconds=%.0f", section->name,
             (long long)done, (long long)total, (double)(now - b->started_ns) / 1e9);
}

/* Why a clip of the sample cannot be used; NULL if all can. Without the clip its text is not known,
 * since the times of its frames are part of the text. */
static const char *bad_clip(const source *section, const sample *smp)
{
    for (int32_t k = 0; k < smp->n_images; k++) {
        index_image im;
        image_place place;
        index_image_get(section->index, smp->images[k], &im);
        if (!im.cause)
            continue;
        dataset_image_place(section->data, smp->images[k], &place);
        if (place.video || place.n_frames)
            return im.cause;
    }
    return NULL;
}

/* Makes a lease of texts. Samples that the adapter refuses are recorded at once; the others go to a
 * worker. */
static status produce_texts(dispatch *d, source *section, lease **out)
{
    index_build *b = &section->build;
    int64_t item[INDEX_LEASE_ITEMS], n = 0, bytes = 0;
    arena *a = &d->scratch;
    arena_reset(a);
    for (; n < INDEX_LEASE_ITEMS && bytes < TEXT_BYTES_PER_LEASE &&
           b->next_sample < index_samples(section->index);
         b->next_sample++) {
        sample smp;
        TRY(section->data->adapter->outline(section->data, b->next_sample, a, &smp));
        const char *cause = smp.cause ? smp.cause : bad_clip(section, &smp);
        if (cause) {
            index_sample refused = {.cause = cause};
            TRY(index_put_sample(section->index, b->next_sample, &refused));
            b->left--;
        } else {
            item[n++] = b->next_sample;
            bytes += smp.text_bytes;
        }
    }
    if (n == 0)
        return index_build_finish(section);
    return lease_new(&d->book, LEASE_TEXTS, section, 0, item, n, out);
}

status index_build_produce(dispatch *d, source *section, lease **out)
{
    index_build *b = &section->build;
    *out = NULL;
    if (!b->active)
        return ST_OK;
    if (b->next_image < index_images(section->index)) {
        int64_t item[IMAGES_PER_LEASE], n = 0;
        while (n < IMAGES_PER_LEASE && b->next_image < index_images(section->index))
            item[n++] = b->next_image++;
        return lease_new(&d->book, LEASE_IMAGES, section, 0, item, n, out);
    }
    if (b->images_left == 0 && b->next_sample < index_samples(section->index))
        return produce_texts(d, section, out);
    return ST_OK;
}

status index_build_poison(lease *l, int64_t item, const char *cause)
{
    source *section = l->owner;
    if (l->kind == LEASE_IMAGES) {
        /* Size and time are recorded as well, so that the refusal holds until the file changes. */
        index_image x = {.cause = cause};
        dataset_image_stat(section->data, item, &x.file_bytes, &x.mtime_ns);
        TRY(index_put_image(section->index, item, &x));
    } else {
        index_sample x = {.cause = cause};
        TRY(index_put_sample(section->index, item, &x));
    }
    lease_drop_item(l, item);
    section->build.left--;
    section->build.images_left -= l->kind == LEASE_IMAGES;
    return index_build_finish(section);
}
