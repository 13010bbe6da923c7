/* chance.c: of all pairs of replies to the same question, the share that agree: with c replies of a
 * kind among n to a question, c (c - 1) / (n (n - 1)) summed over the kinds. Unlike the share of
 * the commonest reply it is not too high where a question occurs only a few times. */
#include "trainer/eval/chance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

/* The hash of the text tokens in [begin, end): visual tokens, of which every picture has another
 * number, are left out. */
static status hash_text(const row *r, int64_t begin, int64_t end, uint64_t *out)
{
    int32_t *ids = malloc((size_t)(end - begin + 1) * sizeof *ids);
    size_t n = 0;
    if (!ids)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    for (int64_t t = begin; t < end; t++)
        if (r->visual_row[t] < 0)
            ids[n++] = r->input_ids[t];
    const hash128 hash = hash_bytes(ids, n * sizeof *ids);
    memcpy(out, hash.bytes, sizeof *out);
    free(ids);
    return ST_OK;
}

static bool shows_picture(const row *r, int64_t doc)
{
    for (int64_t t = r->cu_seqlens[doc]; t < r->cu_seqlens[doc + 1]; t++)
        if (r->visual_row[t] >= 0)
            return true;
    return false;
}

static status make_room(chance *all, int64_t n)
{
    if (all->count + n <= all->capacity)
        return ST_OK;
    const int64_t capacity = 2 * (all->count + n);
    chance_entry *more = realloc(all->list, (size_t)capacity * sizeof *more);
    if (!more)
        return FAIL(ST_NO_MEMORY, "chance: out of memory");
    all->list = more;
    all->capacity = capacity;
    return ST_OK;
}

status chance_add(chance *all, const row *r, const reply *replies, int64_t n)
{
    TRY(make_room(all, n));
    for (int64_t i = 0; i < n; i++) {
        const reply *at = &replies[i];
        if (!shows_picture(r, at->doc))
            continue;
        chance_entry *entry = &all->list[all->count];
        TRY(hash_text(r, r->cu_seqlens[at->doc], at->begin, &entry->question));
        TRY(hash_text(r, at->begin, at->end, &entry->answer));
        all->count++;
    }
    return ST_OK;
}

static int by_question_then_answer(const void *a, const void *b)
{
    const chance_entry *x = a, *y = b;
    if (x->question != y->question)
        return x->question < y->question ? -1 : 1;
    return (x->answer > y->answer) - (x->answer < y->answer);
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
    for (int64_t first = 0, n; first < all->count; first += n) {
        n = count_alike(all, first, false);
        if (n < 2)
            continue;
        repeated += n;
        for (int64_t i = first, c; i < first + n; i += c) {
            c = count_alike(all, i, true);
            right += (double)(c * (c - 1)) / (double)(n - 1);
        }
    }
    return all->count > 0 && 10 * repeated >= 9 * all->count ? 100 * right / (double)repeated : NAN;
}

void chance_done(chance *all)
{
    free(all->list);
    *all = (chance){0};
}
