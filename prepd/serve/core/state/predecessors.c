/* SPDX-License-Identifier: Apache-2.0 */
/* predecessors.c: finds predecessors by a hash of what samples begin with. */
#include "prepd/serve/core/state/predecessors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "prepd/dataset/tables.h"

/* The last sample with a certain beginning. */
typedef struct last_seen {
    hash128 key;
    int64_t number;
} last_seen;

struct predecessors {
    const dataset *data;
    int64_t n_samples;
    int64_t *back; /* [n_samples] */
    id_map by_key; /* the first 64 bits of a key -> position in `seen` */
    last_seen *seen;
    int64_t n_seen, seen_capacity;
    int64_t last_text; /* the sample added last if it is a conversation without images; else -1 */
};

status predecessors_new(const dataset *data, predecessors **out)
{
    predecessors *all = (predecessors *)calloc(1, sizeof *all);
    if (all) {
        all->data = data;
        all->n_samples = data->adapter->samples(data);
        all->last_text = -1;
        all->back = (int64_t *)calloc((size_t)all->n_samples + 1, sizeof *all->back);
    }
    if (!all || !all->back) {
        predecessors_free(&all);
        return FAIL(ST_NO_MEMORY, "no memory to compare the samples of a data set");
    }
    *out = all;
    return ST_OK;
}

void predecessors_free(predecessors **all)
{
    if (!all || !*all)
        return;
    free((*all)->back);
    free((*all)->seen);
    id_map_done(&(*all)->by_key);
    free(*all);
    *all = NULL;
}

int64_t predecessors_back(const predecessors *all, int64_t number)
{
    return all->back[number];
}

/* Adds a turn up to its part `end`. Where one text ends and the next begins makes no difference to
 * the ids, so a run of texts is added as one: its bytes and then their number. */
static void add_turn(hasher *hash, const turn *said, int32_t end)
{
    uint64_t bytes = 0;
    hasher_add_u64(hash, (uint64_t)said->role);
    for (int32_t i = 0; i < end; i++) {
        const part *piece = &said->parts[i];
        if (piece->text) {
            hasher_add(hash, piece->text, (size_t)piece->text_bytes);
            bytes += (uint64_t)piece->text_bytes;
            continue;
        }
        hasher_add_u64(hash, bytes);
        hasher_add_u64(hash, (uint64_t)piece->image);
        bytes = 0;
    }
    hasher_add_u64(hash, bytes);
}

/* Where the sample's last image is: part *out_part of the turn that is returned; -1 without one. */
static int32_t last_image(const sample *from, int32_t *out_part)
{
    int32_t at = -1;
    *out_part = 0;
    for (int32_t i = 0; i < from->n_turns; i++)
        for (int32_t k = 0; k < from->turns[i].n_parts; k++)
            if (!from->turns[i].parts[k].text) {
                at = i;
                *out_part = k;
            }
    return at;
}

/* A hash of the sample's place, its images, and its turns up to the last of them. */
static status key_of(const sample *from, sample_place place, hash128 *out)
{
    hasher *hash = NULL;
    int32_t end;
    const int32_t at = last_image(from, &end);
    TRY(hasher_new(&hash));
    hasher_add_u64(hash, (uint64_t)place.source);
    hasher_add_u64(hash, (uint64_t)place.piece);
    hasher_add_u64(hash, (uint64_t)from->n_images);
    for (int32_t k = 0; k < from->n_images; k++)
        hasher_add_u64(hash, (uint64_t)from->images[k]);
    for (int32_t i = 0; i < at; i++)
        add_turn(hash, &from->turns[i], from->turns[i].n_parts);
    if (at >= 0)
        add_turn(hash, &from->turns[at], end + 1);
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

static status add_shown(predecessors *all, int64_t number, const sample *next)
{
    hash128 key;
    int64_t id, at;
    bool is_new;
    TRY(key_of(next, dataset_sample_place(all->data, number), &key));
    memcpy(&id, key.bytes, sizeof id);
    TRY(array_room((void **)&all->seen, all->n_seen, &all->seen_capacity, sizeof *all->seen));
    TRY(id_map_put(&all->by_key, id, all->n_seen, &at, &is_new));
    if (is_new)
        all->seen[all->n_seen++] = (last_seen){key, number};
    if (!hash_equal(all->seen[at].key, key)) /* half of both hashes is equal by chance */
        return ST_OK;
    all->back[number] = number - all->seen[at].number;
    all->seen[at].number = number;
    return ST_OK;
}

status predecessors_add(predecessors *all, int64_t number, const sample *next)
{
    const int64_t before = all->last_text;
    all->last_text = -1;
    if (next->plain)
        return ST_OK;
    if (next->n_images > 0)
        return add_shown(all, number, next);
    all->last_text = number;
    if (before < 0)
        return ST_OK;
    const sample_place own = dataset_sample_place(all->data, number),
                       other = dataset_sample_place(all->data, before);
    if (own.source == other.source && own.piece == other.piece)
        all->back[number] = number - before;
    return ST_OK;
}
