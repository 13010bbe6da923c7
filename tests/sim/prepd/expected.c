/* expected.c: the index as it must be, and the rows as prepd/plan places them. */
#include "tests/sim/prepd/expected.h"

#include <stdlib.h>
#include <string.h>

#include "prepd/sample/clip.h"
#include "proto/assign.h"
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

status reference_init(reference *out, const sim_data *data, const conf *options, plan_kind kind)
{
    *out = (reference){.data = data, .options = options, .index = reference_index(data)};
    arena_init(&out->memory, 0);
    const status st = plan_new(options, &data->base, out->index, kind, &out->plan);
    if (st != ST_OK) {
        reference_done(out);
        return st;
    }
    out->n_rows = plan_rows(out->plan, NULL);
    return ST_OK;
}

void reference_done(reference *of)
{
    for (uint64_t i = 0; i < of->capacity; i++)
        free(of->row[i].docs);
    for (int i = 0; i < KEPT_STEPS; i++)
        free(of->steps[i].rank_of);
    free(of->row);
    plan_free(&of->plan);
    index_free(&of->index);
    arena_done(&of->memory);
    *of = (reference){0};
}

/* Adds the frames of a clip that rows take: in the file's list, and in the document's. */
static uint64_t hash_frames(reference *of, const sim_picture *clip, uint64_t hash)
{
    int64_t *index, count;
    check_status(
        clip_choose(clip->frames, clip->fps, &clip_published, &of->memory, &index, &count));
    for (int64_t i = 0; i < count; i++)
        hash = content_add_frame(content_add_frame(hash, index[i]), index[i]);
    return content_add(hash, (uint64_t)clip->fps);
}

static uint64_t hash_pictures(reference *of, const planned_doc *doc)
{
    uint64_t hash = 0;
    for (int32_t i = 0; i < doc->n_images; i++) {
        const sim_picture *own = &of->data->picture[doc->images[i]];
        const bool clip = own->frames > 0;
        hash = content_add_picture(hash, own->name, strlen(own->name), own->bytes,
                                   clip ? -1 : own->height, clip ? -1 : own->width,
                                   doc->grids[i].rows, doc->grids[i].columns);
        if (clip)
            hash = hash_frames(of, own, hash);
    }
    return hash;
}

static void keep_doc(reference *of, const planned_doc *doc, reference_doc *out)
{
    const doc_content content = {.sample = doc->sample,
                                 .part = doc->part,
                                 .tokens = doc->tokens,
                                 .from = doc->from,
                                 .whole = doc->whole,
                                 .prefix = doc->prefix,
                                 .before = doc->before,
                                 .n_pictures = doc->n_images,
                                 .shared = doc->shared,
                                 .turns = sim_data_turns_hash(of->data, doc->sample),
                                 .pictures = hash_pictures(of, doc)};
    *out = (reference_doc){doc->sample, doc->prefix, content_hash(&content)};
}

static void keep_row(reference *of, const planned_row *placed, reference_row *out)
{
    row_measure measure = {.tokens = placed->tokens, .patches = placed->patches};
    *out = (reference_row){.known = true, .n_docs = placed->n_docs};
    out->docs = must_have(calloc((size_t)placed->n_docs + 1, sizeof *out->docs));
    for (int64_t i = 0; i < placed->n_docs; i++) {
        const planned_doc *doc = &placed->docs[i];
        keep_doc(of, doc, &out->docs[i]);
        measure.squares += (int64_t)doc->tokens * (doc->tokens + 2 * (int64_t)doc->before);
    }
    out->cost = assign_cost(&measure);
}

/* Makes room for row `number`. Rows of a stream that ends have their room from the first call on.
 */
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
    planned_row placed;
    if (number >= of->n_rows)
        return NULL;
    make_room(of, number);
    if (of->row[number].known)
        return &of->row[number];
    arena_reset(&of->memory);
    check_status(plan_row(of->plan, NULL, number, &of->memory, &placed));
    keep_row(of, &placed, &of->row[number]);
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
    check_status(assign_rows(cost, count, ranks, rank_of));
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
