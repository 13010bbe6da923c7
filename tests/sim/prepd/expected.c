/* SPDX-License-Identifier: Apache-2.0 */
/* expected.c: the index as it must be, and the rows as the slow plan places them. */
#include "tests/sim/prepd/expected.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/row_content.h"

static void check_status(status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "the reference cannot be made: %s\n", status_text());
    abort();
}

static void *must_have(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

data_index *reference_index(const sim_data *data)
{
    data_index *index = NULL;
    check_status(index_new(data->n_samples, data->n_pictures, &index));
    index_identify(index, data->contents);
    if (data->begins)
        check_status(index_take_beginnings(index));
    for (int64_t i = 0; i < data->n_pictures; i++) {
        const index_image record = sim_data_picture_record(data, i);
        check_status(index_put_image(index, i, &record));
    }
    for (int64_t i = 0; i < data->n_samples; i++) {
        check_status(index_put_sample(index, i, &data->sample[i].record));
        if (data->begins)
            check_status(index_put_beginning(index, i, &data->sample[i].begins));
    }
    check_status(index_seal(index));
    if (!hash_equal(data->identity, data->contents))
        check_status(index_mix(index, data->identity));
    return index;
}

static slow_sample facts_of(const sim_data *data, int64_t number)
{
    const sim_sample *own = &data->sample[number];
    const sample_place place = sim_data_place(data, number);
    return (slow_sample){.refused = own->record.cause != NULL,
                         .plain = own->plain,
                         .text_tokens = own->record.text_tokens,
                         .targets = own->record.targets,
                         .shows = own->shows,
                         .n_shown = own->n_shown,
                         .back = own->begins.before,
                         .agrees = own->begins.agrees,
                         .head = own->begins.head,
                         .first_label = own->begins.first_label,
                         .source = place.source,
                         .piece = place.piece};
}

slow_data reference_facts(const sim_data *data)
{
    slow_picture *pictures = must_have(calloc((size_t)data->n_pictures + 1, sizeof *pictures));
    slow_sample *samples = must_have(calloc((size_t)data->n_samples + 1, sizeof *samples));
    double *weights = must_have(calloc(MOST_SOURCES, sizeof *weights));
    for (int64_t i = 0; i < data->n_pictures; i++) {
        const index_image record = sim_data_picture_record(data, i);
        pictures[i] = (slow_picture){record.cause != NULL, record.height, record.width,
                                     record.frames, record.fps};
    }
    for (int64_t i = 0; i < data->n_samples; i++)
        samples[i] = facts_of(data, i);
    for (int i = 0; data->n_sources > 1 && i < data->n_sources; i++)
        weights[i] = data->part[i].weight;
    return (slow_data){pictures, samples, data->n_samples, weights, data->n_sources};
}

void reference_facts_done(slow_data *facts)
{
    free((void *)facts->pictures);
    free((void *)facts->samples);
    free((void *)facts->weights);
    *facts = (slow_data){0};
}

bool reference_init(reference *out, const sim_data *data, const conf *options, slow_kind kind)
{
    *out = (reference){.data = data,
                       .options = options,
                       .index = reference_index(data),
                       .facts = reference_facts(data)};
    out->plan = slow_plan_new(&out->facts, options, kind);
    if (!out->plan) {
        reference_done(out);
        return false;
    }
    out->n_rows = slow_plan_rows(out->plan);
    return true;
}

void reference_done(reference *of)
{
    for (uint64_t i = 0; i < of->capacity; i++)
        free(of->row[i].docs);
    for (int i = 0; i < KEPT_STEPS; i++)
        free(of->steps[i].rank_of);
    free(of->row);
    slow_plan_free(&of->plan);
    reference_facts_done(&of->facts);
    index_free(&of->index);
    *of = (reference){0};
}

/* Adds the frames of a clip that rows take: in the file's list, and in the document's. */
static uint64_t hash_frames(const reference *of, int32_t picture, uint64_t hash)
{
    const slow_picture *clip = &of->facts.pictures[picture];
    int64_t *frame = must_have(calloc((size_t)clip->frames, sizeof *frame));
    const int64_t count = slow_frames(clip, of->options, frame);
    for (int64_t i = 0; i < count; i++)
        hash = content_add_frame(content_add_frame(hash, frame[i]), frame[i]);
    free(frame);
    return content_add(hash, (uint64_t)clip->fps);
}

static uint64_t hash_pictures(const reference *of, const slow_doc *doc)
{
    uint64_t hash = 0;
    for (int32_t i = 0; i < doc->n_shown; i++) {
        const sim_picture *own = &of->data->picture[doc->shows[i]];
        const bool clip = own->frames > 0;
        hash = content_add_picture(hash, own->name, strlen(own->name), own->bytes,
                                   clip ? -1 : own->height, clip ? -1 : own->width,
                                   doc->grids[i].rows, doc->grids[i].columns);
        if (clip)
            hash = hash_frames(of, doc->shows[i], hash);
    }
    return hash;
}

static void keep_doc(const reference *of, const slow_doc *doc, reference_doc *out)
{
    const doc_content content = {.sample = doc->sample,
                                 .part = doc->part,
                                 .tokens = doc->tokens,
                                 .from = doc->from,
                                 .whole = doc->whole,
                                 .prefix = doc->prefix,
                                 .before = doc->before,
                                 .n_pictures = doc->n_shown,
                                 .shared = doc->shared,
                                 .turns = sim_data_turns_hash(of->data, doc->sample) +
                                          of->data->sample[doc->sample].plain,
                                 .pictures = hash_pictures(of, doc)};
    *out = (reference_doc){doc->sample, (int32_t)doc->prefix, content_hash(&content)};
}

static void keep_row(const reference *of, const slow_row *placed, reference_row *out)
{
    *out = (reference_row){.known = true, .n_docs = placed->n_docs, .cost = placed->cost};
    out->docs = must_have(calloc((size_t)placed->n_docs + 1, sizeof *out->docs));
    for (int64_t i = 0; i < placed->n_docs; i++)
        keep_doc(of, &placed->docs[i], &out->docs[i]);
}

/* Makes room for row `number`.
 * Rows of a stream that ends have their room from the first call on. */
static void make_room(reference *of, uint64_t number)
{
    if (number < of->capacity)
        return;
    uint64_t wanted = of->n_rows == UINT64_MAX ? 2 * number + 64 : of->n_rows;
    of->row = must_have(realloc(of->row, (size_t)wanted * sizeof *of->row));
    memset(of->row + of->capacity, 0, (size_t)(wanted - of->capacity) * sizeof *of->row);
    of->capacity = wanted;
}

const reference_row *reference_find_row(reference *of, uint64_t number)
{
    if (number >= of->n_rows)
        return NULL;
    make_room(of, number);
    if (of->row[number].known)
        return &of->row[number];
    keep_row(of, slow_plan_row(of->plan, number), &of->row[number]);
    return &of->row[number];
}

/* Which rank gets each row of a step; NOBODY for rows past the end. */
enum { NOBODY = -1 };
static const int *assign_step(reference *of, int ranks, uint64_t step)
{
    const int64_t batch = of->options->training_global_batch_size;
    for (int i = 0; i < KEPT_STEPS; i++)
        if (of->steps[i].ranks == ranks && of->steps[i].step == step)
            return of->steps[i].rank_of;
    const unsigned place = of->next_step++ % KEPT_STEPS;
    int64_t *cost = must_have(calloc((size_t)batch, sizeof *cost)), count = 0;
    free(of->steps[place].rank_of);
    int *rank_of = must_have(calloc((size_t)batch, sizeof *rank_of));
    for (; count < batch; count++) {
        const reference_row *row = reference_find_row(of, step * (uint64_t)batch + (uint64_t)count);
        if (!row)
            break;
        cost[count] = row->cost;
    }
    slow_assign(cost, count, ranks, rank_of);
    for (int64_t i = count; i < batch; i++)
        rank_of[i] = NOBODY;
    free(cost);
    of->steps[place].step = step;
    of->steps[place].ranks = ranks;
    of->steps[place].rank_of = rank_of;
    return rank_of;
}

bool reference_next(reference *of, int ranks, int rank, uint64_t from, uint64_t *out)
{
    const uint64_t batch = (uint64_t)of->options->training_global_batch_size;
    for (; reference_find_row(of, from); from++)
        if (ranks == 1 || assign_step(of, ranks, from / batch)[from % batch] == rank) {
            *out = from;
            return true;
        }
    return false;
}
