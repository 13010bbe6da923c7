/* chance.c: of all pairs of replies to the same question, the share that agree: with c replies of a
 * kind among n to a question, c (c - 1) / (n (n - 1)) summed over the kinds. Unlike the share of
 * the commonest reply it is not too high where a question occurs only a few times. */
#include "trainer/eval/chance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "trainer/generate/prompt.h"

/* The hash of the text tokens [begin, end) of a document's sample: visual tokens, whose number
 * differs between pictures, are left out. */
static status hash_text(const row *packed, int64_t doc, int64_t begin, int64_t end, uint64_t *out)
{
    int32_t *ids = malloc((size_t)(end - begin + 1) * sizeof *ids);
    size_t count = 0;
    if (!ids)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    for (int64_t i = begin; i < end; i++) {
        const int64_t token = sample_token(packed, doc, i);
        if (packed->visual_row[token] < 0)
            ids[count++] = packed->input_ids[token];
    }
    const hash128 hash = hash_bytes(ids, count * sizeof *ids);
    memcpy(out, hash.bytes, sizeof *out);
    free(ids);
    return ST_OK;
}

static bool shows_picture(const row *packed, int64_t doc)
{
    for (int64_t i = 0; i < sample_tokens(packed, doc); i++)
        if (packed->visual_row[sample_token(packed, doc, i)] >= 0)
            return true;
    return false;
}

static status make_room(chance *all, int64_t count)
{
    if (all->count + count <= all->capacity)
        return ST_OK;
    const int64_t capacity = 2 * (all->count + count);
    chance_entry *more = realloc(all->list, (size_t)capacity * sizeof *more);
    if (!more)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    all->list = more;
    all->capacity = capacity;
    return ST_OK;
}

status chance_add(chance *all, const row *packed, const reply *replies, int64_t count)
{
    TRY(make_room(all, count));
    for (int64_t i = 0; i < count; i++) {
        const reply *at = &replies[i];
        if (!shows_picture(packed, at->doc))
            continue;
        chance_entry *entry = &all->list[all->count];
        const int64_t begin = sample_index(packed, at->doc, at->begin);
        TRY(hash_text(packed, at->doc, 0, begin, &entry->question));
        TRY(hash_text(packed, at->doc, begin, begin + at->end - at->begin, &entry->answer));
        all->count++;
    }
    return ST_OK;
}

static int by_question_then_answer(const void *left, const void *right)
{
    const chance_entry *first = left, *second = right;
    if (first->question != second->question)
        return first->question < second->question ? -1 : 1;
    return (first->answer > second->answer) - (first->answer < second->answer);
}

/* How many entries from `first` on have the same question and, if asked, the same answer. */
static int64_t count_alike(const chance *all, int64_t first, bool and_answer)
{
    const chance_entry *is = &all->list[first];
    int64_t i = first;
    while (i < all->count && all->list[i].question == is->question &&
           (!and_answer || all->list[i].answer == is->answer))
        i++;
    return i - first;
}

double chance_percent(chance *all)
{
    int64_t repeated = 0;
    double right = 0;
    if (all->count > 0)
        qsort(all->list, (size_t)all->count, sizeof *all->list, by_question_then_answer);
    for (int64_t first = 0, j; first < all->count; first += j) {
        j = count_alike(all, first, false);
        if (j < 2)
            continue;
        repeated += j;
        for (int64_t i = first, k; i < first + j; i += k) {
            k = count_alike(all, i, true);
            right += (double)(k * (k - 1)) / (double)(j - 1);
        }
    }
    return all->count > 0 && 10 * repeated >= 9 * all->count ? 100 * right / (double)repeated : NAN;
}

void chance_done(chance *all)
{
    free(all->list);
    *all = (chance){0};
}
