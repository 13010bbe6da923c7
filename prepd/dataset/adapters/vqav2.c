/* SPDX-License-Identifier: Apache-2.0 */
/* vqav2.c: the adapter of VQAv2 in its official layout. It makes samples of the questions that
 * vqa_read.c read or vqa_cache.c kept: one for each question, or one conversation for each picture.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "prepd/dataset/adapters/vqa.h"

static const vqa *as_vqa(const dataset *set)
{
    return (const vqa *)set;
}

static void vqa_close(dataset *base)
{
    vqa *set = (vqa *)base;
    if (!set)
        return;
    text_pool_done(&set->texts);
    id_map_done(&set->by_question);
    id_map_done(&set->by_image);
    free(set->questions);
    free(set->image_paths);
    free(set->places);
    free(set->place_at);
    id_map_done(&set->place_of);
    free(set->order);
    free(set->samples);
    free(set);
}

/* Makes each question a sample, in the order of the file. */
static void group_none(vqa *set)
{
    for (int64_t i = 0; i < set->n_questions; i++) {
        set->order[i] = i;
        set->samples[i] = (vqa_sample){i, 1};
    }
    set->n_samples = set->n_questions;
}

/* Makes the usable questions of a picture the turns of one sample, which stands where the first of
 * them stood. A question that cannot be used stays a separate sample, with its cause. */
static status group_conversations(vqa *set, int64_t limit)
{
    int64_t *sample_of = (int64_t *)malloc((size_t)(set->n_images + 1) * sizeof *sample_of);
    int64_t *count = (int64_t *)calloc((size_t)set->n_images + 1, sizeof *count);
    if (!sample_of || !count) {
        free(sample_of);
        free(count);
        return FAIL(ST_NO_MEMORY, "no memory to group %" PRId64 " questions", set->n_questions);
    }
    for (int64_t j = 0; j < set->n_images; j++)
        sample_of[j] = -1;
    for (int64_t i = 0; i < set->n_questions; i++)
        if (!set->questions[i].cause)
            count[set->questions[i].image]++;
    int64_t next = 0; /* position in the set's order */
    for (int64_t i = 0; i < set->n_questions; i++) {
        const vqa_question *question = &set->questions[i];
        if (question->cause) {
            set->samples[set->n_samples++] = (vqa_sample){next, 1};
            set->order[next++] = i;
            continue;
        }
        int64_t *its_sample = &sample_of[question->image];
        if (*its_sample < 0) {
            *its_sample = set->n_samples++;
            set->samples[*its_sample] = (vqa_sample){next, 0};
            next += count[question->image];
        }
        vqa_sample *mine = &set->samples[*its_sample];
        set->order[mine->first + mine->count++] = i;
    }
    free(sample_of);
    free(count);
    if (limit && set->n_samples > limit)
        set->n_samples = limit;
    return ST_OK;
}

static void add_text(hasher *hash, const vqa *set, int64_t at, int64_t count)
{
    hasher_add_u64(hash, (uint64_t)count);
    hasher_add(hash, text_pool_at(&set->texts, at), (size_t)count);
}

/* The digest of everything that a sample can show. Where the folder is mounted does not matter to
 * it. */
static status compute_identity(vqa *set, int group)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    hasher_add(hash, "vqav2", 5);
    hasher_add_u64(hash, (uint64_t)group);
    add_text(hash, set, 0, 0); /* in place of an option of older builds */
    hasher_add_u64(hash, (uint64_t)set->n_images);
    for (int64_t j = 0; j < set->n_images; j++)
        add_text(hash, set, set->image_paths[j],
                 (int64_t)strlen(text_pool_at(&set->texts, set->image_paths[j])));
    hasher_add_u64(hash, (uint64_t)set->n_samples);
    for (int64_t i = 0; i < set->n_samples; i++) {
        hasher_add_u64(hash, (uint64_t)set->samples[i].count);
        for (int32_t k = 0; k < set->samples[i].count; k++) {
            const vqa_question *question = &set->questions[set->order[set->samples[i].first + k]];
            hasher_add_u64(hash, (uint64_t)question->id);
            hasher_add_u64(hash, (uint64_t)question->image);
            add_text(hash, set, question->text, question->text_bytes);
            add_text(hash, set, question->answer, question->answer_bytes);
            add_text(hash, set, question->cause,
                     (int64_t)strlen(text_pool_at(&set->texts, question->cause)));
        }
    }
    set->identity = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

/* Makes samples of the questions. */
static status make_samples(vqa *set, const conf *options)
{
    set->order = (int64_t *)malloc((size_t)set->n_questions * sizeof *set->order);
    set->samples = (vqa_sample *)malloc((size_t)set->n_questions * sizeof *set->samples);
    if (!set->order || !set->samples)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " samples", set->n_questions);
    if (options->data_group == GROUP_CONVERSATION)
        TRY(group_conversations(set, options->data_limit));
    else
        group_none(set);
    return compute_identity(set, options->data_group);
}

/* Takes what is kept from an earlier start, if its samples have the identity that was kept with
 * them. */
static status open_cached(const conf *options, vqa *set, bool *out_there)
{
    hash128 identity;
    *out_there = vqa_cache_load(set, options, &identity);
    if (!*out_there)
        return ST_OK;
    TRY(make_samples(set, options));
    *out_there = hash_equal(set->identity, identity);
    return ST_OK;
}

static status open_read(const conf *options, vqa *set)
{
    TRY(vqa_read(set, options,
                 options->data_group == GROUP_CONVERSATION ? 0 : options->data_limit));
    TRY(make_samples(set, options));
    id_map_done(&set->by_question); /* only reading needs these */
    id_map_done(&set->by_image);
    id_map_done(&set->place_of);
    vqa_cache_save(set, options);
    return ST_OK;
}

static status new_vqa(const conf *options, vqa **out)
{
    vqa *set = (vqa *)calloc(1, sizeof *set);
    if (!set)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    set->base.adapter = &dataset_vqav2;
    status st = vqa_find_files(options, &set->paths);
    if (st != ST_OK)
        vqa_close(&set->base);
    else
        *out = set;
    return st;
}

static status vqa_open(const conf *options, dataset **out)
{
    vqa *set = NULL;
    bool cached = false;
    cache_lock lock = {0};
    TRY(new_vqa(options, &set));
    vqa_cache_enter(set, options, &lock);
    status st = open_cached(options, set, &cached);
    if (st == ST_OK && !cached) {
        vqa_close(&set->base); /* discards what a bad cache has left in it */
        set = NULL;
        st = new_vqa(options, &set);
        if (st == ST_OK)
            st = open_read(options, set);
    }
    cache_lock_leave(&lock);
    if (st == ST_OK)
        *out = &set->base;
    else if (set)
        vqa_close(&set->base);
    return st;
}

static int64_t vqa_samples(const dataset *set)
{
    return as_vqa(set)->n_samples;
}

static int64_t vqa_images(const dataset *set)
{
    return as_vqa(set)->n_images;
}

static const char *vqa_image_path(const dataset *set, int64_t index)
{
    return text_pool_at(&as_vqa(set)->texts, as_vqa(set)->image_paths[index]);
}

static void vqa_place(const dataset *base, int64_t index, image_place *out)
{
    const vqa *set = as_vqa(base);
    const bool packed = set->paths.picture_zip[0] != 0;
    snprintf(out->path, sizeof out->path, "%s",
             packed ? set->paths.picture_zip : vqa_image_path(base, index));
    out->offset = packed ? set->places[set->place_at[index]].offset : 0;
    out->bytes = packed ? set->places[set->place_at[index]].bytes : -1;
}

static const char *vqa_root(const dataset *set)
{
    return as_vqa(set)->paths.root;
}

static hash128 vqa_identity(const dataset *set)
{
    return as_vqa(set)->identity;
}

static status name_sample(const vqa *set, const vqa_sample *smp, arena *memory, const char **out)
{
    char text[128];
    const vqa_question *question = &set->questions[set->order[smp->first]];
    if (smp->count > 1)
        snprintf(text, sizeof text, "image %" PRId64 " (%d questions from %" PRId64 " on)",
                 question->image_id, smp->count, question->id);
    else if (question->id || !question->cause)
        snprintf(text, sizeof text, "question %" PRId64, question->id);
    else
        snprintf(text, sizeof text, "question number %" PRId64 " of the file",
                 set->order[smp->first] + 1);
    char *copy;
    TRY(arena_strndup(memory, text, strlen(text), &copy));
    *out = copy;
    return ST_OK;
}

/* Makes a question and its answer two turns. The picture stands before the first question of a
 * sample. */
static status fill_turns(const vqa *set, const vqa_question *question, bool first, arena *memory,
                         turn *turns)
{
    void *parts;
    TRY(arena_calloc(memory, 3, sizeof(part), &parts));
    part *list = (part *)parts;
    int used = 0;
    if (first)
        list[used++] = (part){NULL, 0, 0};
    list[used++] = (part){text_pool_at(&set->texts, question->text), question->text_bytes, -1};
    turns[0] = (turn){.role = ROLE_USER, .parts = list, .n_parts = used};
    list[used] = (part){text_pool_at(&set->texts, question->answer), question->answer_bytes, -1};
    turns[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = list + used, .n_parts = 1};
    return ST_OK;
}

static status vqa_outline(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const vqa *set = as_vqa(base);
    if (index < 0 || index >= set->n_samples)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, index, set->n_samples);
    const vqa_sample *smp = &set->samples[index];
    const vqa_question *question = &set->questions[set->order[smp->first]];
    sample outline = {.id = (uint64_t)index};
    TRY(name_sample(set, smp, memory, &outline.name));
    if (question->cause) {
        outline.cause = text_pool_at(&set->texts, question->cause);
        *out = outline;
        return ST_OK;
    }
    void *images;
    TRY(arena_calloc(memory, 1, sizeof(int32_t), &images));
    outline.images = (int32_t *)images;
    outline.images[0] = question->image;
    outline.n_images = 1;
    *out = outline;
    return ST_OK;
}

static status vqa_get(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const vqa *set = as_vqa(base);
    sample smp;
    TRY(vqa_outline(base, index, memory, &smp));
    if (smp.cause) {
        *out = smp;
        return ST_OK;
    }
    const vqa_sample *sample_of = &set->samples[index];
    TRY(arena_calloc(memory, 2 * (size_t)sample_of->count, sizeof(turn), (void **)&smp.turns));
    smp.n_turns = 2 * sample_of->count;
    for (int32_t k = 0; k < sample_of->count; k++)
        TRY(fill_turns(set, &set->questions[set->order[sample_of->first + k]], k == 0, memory,
                       smp.turns + 2 * k));
    *out = smp;
    return ST_OK;
}

static const char *vqa_reference(const dataset *base, int64_t index)
{
    const vqa *set = as_vqa(base);
    const vqa_sample *smp = &set->samples[index];
    const vqa_question *question = &set->questions[set->order[smp->first]];
    return smp->count == 1 && question->reference ? text_pool_at(&set->texts, question->reference)
                                                  : NULL;
}

static const char *vqa_holder(const dataset *set, int64_t index)
{
    (void)index;
    return as_vqa(set)->paths.holder[0] ? as_vqa(set)->paths.holder : vqa_root(set);
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
