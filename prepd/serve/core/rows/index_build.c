/* SPDX-License-Identifier: Apache-2.0 */
/* index_build.c: builds the index by leases to the workers: first the headers of images, then the
 * token counts of texts, which may need the times of clips. A file that kills its workers is
 * refused like a file that cannot be read. */
#include <stdio.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"

enum {
    IMAGES_PER_LEASE = 32,          /* reading so many headers takes milliseconds */
    TEXT_BYTES_PER_LEASE = 1 << 20, /* limits a lease of long texts */
};

/* Seals the index, whose records are all there, and has its file written. */
static status seal(source *section)
{
    const dispatch *state = section->of;
    TRY(index_seal(section->index));
    state->outside.keep_index(state->outside.shell, section);
    TRY(section_mix(section));
    section->ready = true;
    return ST_OK;
}

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
                                   .started_ns = section->of->now_ns};
    if (section->options.data_group == GROUP_SHARED_PREFIX) {
        TRY(index_take_beginnings(section->index));
        TRY(predecessors_new(section->data, &section->build.before));
    }
    if (section->build.left == 0) {
        section->build.active = false;
        return seal(section);
    }
    return ST_OK;
}

status index_build_finish(source *section)
{
    if (!section->build.active || section->build.left > 0)
        return ST_OK;
    section->build.active = false;
    predecessors_free(&section->build.before);
    outside_info(&section->of->outside,
                 "index built section=%s samples=%lld images=%lld seconds=%.1f", section->name,
                 (long long)index_samples(section->index), (long long)index_images(section->index),
                 (double)(section->of->now_ns - section->build.started_ns) / 1e9);
    return seal(section);
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

/* Finds the sample with which a sample that is leased will be compared. */
static status find_before(index_build *build, int64_t number, arena *memory)
{
    sample whole;
    if (!build->before)
        return ST_OK;
    const arena_mark mark = arena_save(memory);
    status st = build->src->data->adapter->sample(build->src->data, number, memory, &whole);
    if (st == ST_OK)
        st = predecessors_add(build->before, number, &whole);
    arena_release(memory, mark);
    return st;
}

/* How many bytes of text a sample adds to a lease whose first sample is `first`: its own, and those
 * of the text that it is compared with, unless the lease has that one anyway (put_after). */
static status count_text(index_build *build, const sample *smp, int64_t number, int64_t first,
                         arena *memory, int64_t *out)
{
    const int64_t back = build->before ? predecessors_back(build->before, number) : 0;
    const dataset *data = build->src->data;
    sample other = {0};
    if (back > 0 && number - back < first)
        TRY(data->adapter->outline(data, number - back, memory, &other));
    *out = smp->text_bytes + other.text_bytes;
    return ST_OK;
}

/* Makes a lease of texts. Samples that the adapter refuses are recorded at once; the others go to a
 * worker. */
static status produce_texts(dispatch *state, source *section, lease **out)
{
    index_build *build = &section->build;
    int64_t item[INDEX_LEASE_ITEMS], count = 0, bytes = 0;
    arena *memory = &state->scratch;
    arena_reset(memory);
    for (; count < INDEX_LEASE_ITEMS && bytes < TEXT_BYTES_PER_LEASE &&
           build->next_sample < index_samples(section->index);
         build->next_sample++) {
        sample smp;
        TRY(section->data->adapter->outline(section->data, build->next_sample, memory, &smp));
        const char *cause = smp.cause ? smp.cause : bad_clip(section, &smp);
        if (cause) {
            index_sample refused = {.cause = cause};
            TRY(index_put_sample(section->index, build->next_sample, &refused));
            build->left--;
        } else {
            int64_t more;
            TRY(find_before(build, build->next_sample, memory));
            item[count++] = build->next_sample;
            TRY(count_text(build, &smp, build->next_sample, item[0], memory, &more));
            bytes += more;
        }
    }
    if (count == 0)
        return index_build_finish(section);
    return lease_new(&state->book, LEASE_TEXTS, section, 0, item, count, out);
}

status index_build_produce(dispatch *state, source *section, lease **out)
{
    index_build *build = &section->build;
    *out = NULL;
    if (!build->active)
        return ST_OK;
    if (build->next_image < index_images(section->index)) {
        int64_t item[IMAGES_PER_LEASE], count = 0;
        while (count < IMAGES_PER_LEASE && build->next_image < index_images(section->index))
            item[count++] = build->next_image++;
        return lease_new(&state->book, LEASE_IMAGES, section, 0, item, count, out);
    }
    if (build->images_left == 0 && build->next_sample < index_samples(section->index))
        return produce_texts(state, section, out);
    return ST_OK;
}

bool index_build_waits(const lease *leased)
{
    const int64_t item = lease_solo_item(leased);
    if (leased->kind != LEASE_TEXTS || item == LEASE_NO_ITEM)
        return false;
    const source *section = leased->owner;
    if (!section->build.before)
        return false;
    const int64_t before = item - predecessors_back(section->build.before, item);
    return before != item && !index_has_sample(section->index, before) &&
           !lease_has(leased, before);
}

void index_build_order_trials(lease *leased)
{
    if (leased->kind != LEASE_TEXTS || !leased->owner)
        return;
    const source *section = leased->owner;
    for (int64_t item;
         section->build.before && (item = lease_solo_item(leased)) != LEASE_NO_ITEM;) {
        const int64_t before = item - predecessors_back(section->build.before, item);
        if (before == item || index_has_sample(section->index, before) ||
            !lease_has(leased, before))
            return;
        lease_try_first(leased, before);
    }
}

status index_build_poison(dispatch *state, lease *leased, int64_t item, const char *cause)
{
    source *section = leased->owner;
    if (leased->kind == LEASE_IMAGES) {
        /* Size and time are recorded as well, so that the refusal holds until the file changes. */
        index_image image = {.cause = cause};
        section->of->outside.stat_image(section->of->outside.shell, section, item,
                                        &image.file_bytes, &image.mtime_ns);
        if (image.file_bytes < 0) { /* the index must not depend on that */
            core_warn(state,
                      "index: the size of \"%s\" cannot be found out now, so it is tried again",
                      section->data->adapter->image_path(section->data, item));
            lease_try_once_more(&state->book, leased, item);
            return ST_OK;
        }
        TRY(index_put_image(section->index, item, &image));
    } else {
        index_sample record = {.cause = cause};
        TRY(index_put_sample(section->index, item, &record));
    }
    core_warn(state, "index: item %lld refused cause=\"%s\"", (long long)item, cause);
    lease_drop_item(leased, item);
    section->build.left--;
    section->build.images_left -= leased->kind == LEASE_IMAGES;
    return index_build_finish(section);
}
