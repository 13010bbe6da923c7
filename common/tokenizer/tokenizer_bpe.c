/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_bpe.c: see tokenizer_bpe.h. Symbols of a piece form a linked list, so that a merge is
 * O(1); candidates that an earlier merge has made invalid stay in the heap and are passed over. */
#include "common/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_SLOTS = 8192,     /* about 1 MiB per thread, enough for the words of VQA questions */
    CACHE_PIECE_BYTES = 32, /* longer pieces are rare and seldom occur again */
    CACHE_TOKENS = 8,
};

typedef struct symbol {
    int32_t id; /* -1 once merged into its left neighbour */
    int32_t start, prev, next;
} symbol;

typedef struct candidate {
    int32_t rank, at; /* the pair is symbol `at` and the next one */
    int32_t id;
} candidate;

typedef struct cached {
    uint8_t size, count; /* bytes and tokens of the piece; size 0: an empty slot */
    uint8_t piece[CACHE_PIECE_BYTES];
    bpe_token tokens[CACHE_TOKENS];
} cached;

struct bpe_scratch {
    symbol *symbols;
    candidate *heap;
    bpe_token *tokens;
    size_t n_heap, capacity; /* capacity: the longest piece that fits, in bytes */
    cached cache[CACHE_SLOTS];
};

static size_t pair_slot(const bpe_merges *merges, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio, which spreads neighbouring ids */
    return (size_t)(key >> 32 ^ key >> 11) & merges->mask;
}

status bpe_merges_init(bpe_merges *merges, size_t n_merges)
{
    size_t slots = 16;
    while (slots < n_merges + n_merges / 2)
        slots *= 2;
    merges->slots = malloc(slots * sizeof *merges->slots);
    if (!merges->slots)
        return FAIL(ST_NO_MEMORY, "no memory for %zu merges", n_merges);
    merges->mask = slots - 1;
    for (size_t i = 0; i < slots; i++)
        merges->slots[i].left = -1;
    return ST_OK;
}

void bpe_merges_done(bpe_merges *merges)
{
    free(merges->slots);
    *merges = (bpe_merges){0};
}

/* The slot of the pair, or the empty slot where it belongs. */
static bpe_merge *find_slot(const bpe_merges *merges, int32_t left, int32_t right)
{
    size_t i = pair_slot(merges, left, right);
    while (merges->slots[i].left >= 0 &&
           (merges->slots[i].left != left || merges->slots[i].right != right))
        i = (i + 1) & merges->mask;
    return &merges->slots[i];
}

void bpe_merges_put(bpe_merges *merges, bpe_merge merge)
{
    *find_slot(merges, merge.left, merge.right) = merge;
}

const bpe_merge *bpe_merges_find(const bpe_merges *merges, int32_t left, int32_t right)
{
    const bpe_merge *found = find_slot(merges, left, right);
    return found->left >= 0 ? found : NULL;
}

status bpe_scratch_new(bpe_scratch **out)
{
    bpe_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return FAIL(ST_NO_MEMORY, "no memory for the tokenizer's cache");
    *out = scratch;
    return ST_OK;
}

void bpe_scratch_free(bpe_scratch **scratch)
{
    if (!*scratch)
        return;
    free((*scratch)->symbols);
    free((*scratch)->heap);
    free((*scratch)->tokens);
    free(*scratch);
    *scratch = NULL;
}

static status reserve_scratch(bpe_scratch *scratch, size_t size)
{
    if (size <= scratch->capacity)
        return ST_OK;
    /* The heap gets one candidate for each neighbouring pair and two for each merge, together fewer
     * than 3 for each byte. Indices are int32_t, which bounds the size of a piece. */
    if (size > INT32_MAX / 4)
        return FAIL(ST_BAD_INPUT,
                    "the text has a piece of %zu bytes without a break; at most %d can be encoded",
                    size, INT32_MAX / 4);
    free(scratch->symbols);
    free(scratch->heap);
    free(scratch->tokens);
    scratch->capacity = 0;
    size_t capacity = size < 256 ? 256 : size;
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    scratch->heap = malloc(3 * capacity * sizeof *scratch->heap);
    scratch->tokens = malloc(capacity * sizeof *scratch->tokens);
    if (!scratch->symbols || !scratch->heap || !scratch->tokens)
        return FAIL(ST_NO_MEMORY, "no memory to encode a piece of %zu bytes", size);
    scratch->capacity = capacity;
    return ST_OK;
}

static int before(candidate first, candidate second)
{
    return first.rank != second.rank ? first.rank < second.rank : first.at < second.at;
}

static void heap_push(bpe_scratch *scratch, candidate third)
{
    size_t i = scratch->n_heap++;
    for (; i && before(third, scratch->heap[(i - 1) / 2]); i = (i - 1) / 2)
        scratch->heap[i] = scratch->heap[(i - 1) / 2];
    scratch->heap[i] = third;
}

static candidate heap_pop(bpe_scratch *scratch)
{
    candidate top = scratch->heap[0], last = scratch->heap[--scratch->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < scratch->n_heap; i = child) {
        if (child + 1 < scratch->n_heap && before(scratch->heap[child + 1], scratch->heap[child]))
            child++;
        if (!before(scratch->heap[child], last))
            break;
        scratch->heap[i] = scratch->heap[child];
    }
    scratch->heap[i] = last;
    return top;
}

/* Puts symbol `at` and its right neighbour on the heap, if both exist and the pair merges. */
static void offer(const bpe_merges *merges, bpe_scratch *scratch, int32_t at)
{
    if (at < 0 || scratch->symbols[at].next < 0)
        return;
    const bpe_merge *merge = bpe_merges_find(merges, scratch->symbols[at].id,
                                             scratch->symbols[scratch->symbols[at].next].id);
    if (merge)
        heap_push(scratch, (candidate){merge->rank, at, merge->id});
}

static size_t merge_piece(const bpe_merges *merges, const int32_t *byte_id, bpe_scratch *scratch,
                          const uint8_t *piece, int32_t size)
{
    for (int32_t i = 0; i < size; i++)
        scratch->symbols[i] = (symbol){byte_id[piece[i]], i, i - 1, i + 1 < size ? i + 1 : -1};
    scratch->n_heap = 0;
    for (int32_t i = 0; i < size; i++)
        offer(merges, scratch, i);
    while (scratch->n_heap) {
        candidate best = heap_pop(scratch);
        symbol *left = &scratch->symbols[best.at];
        if (left->id < 0 || left->next < 0)
            continue;
        symbol *right = &scratch->symbols[left->next];
        /* A neighbour may have merged since the pair was put on the heap. Like the tokenizers
         * library we then compare what the pair becomes, not its rank. */
        const bpe_merge *now = bpe_merges_find(merges, left->id, right->id);
        if (!now || now->id != best.id)
            continue;
        left->id = best.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            scratch->symbols[left->next].prev = best.at;
        offer(merges, scratch, left->prev);
        offer(merges, scratch, best.at);
    }
    size_t count = 0;
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next)
        scratch->tokens[count++] = (bpe_token){scratch->symbols[i].id, scratch->symbols[i].start};
    return count;
}

static cached *cache_slot(bpe_scratch *scratch, const uint8_t *piece, size_t size)
{
    uint64_t mixed = size;
    for (size_t i = 0; i < size; i++)
        mixed = (mixed ^ piece[i]) * 0x100000001B3u; /* FNV-1a's prime */
    return &scratch->cache[(mixed ^ mixed >> 29) % CACHE_SLOTS];
}

status bpe_encode(const bpe_merges *merges, const int32_t *byte_id, bpe_scratch *scratch,
                  const uint8_t *piece, size_t size, const bpe_token **out, size_t *out_n)
{
    if (size == 0) {
        *out_n = 0;
        return ST_OK;
    }
    cached *slot = size <= CACHE_PIECE_BYTES ? cache_slot(scratch, piece, size) : NULL;
    if (slot && slot->size == size && !memcmp(slot->piece, piece, size)) {
        *out = slot->tokens;
        *out_n = slot->count;
        return ST_OK;
    }
    TRY(reserve_scratch(scratch, size));
    size_t count = merge_piece(merges, byte_id, scratch, piece, (int32_t)size);
    if (slot && count <= CACHE_TOKENS) {
        slot->size = (uint8_t)size;
        slot->count = (uint8_t)count;
        memcpy(slot->piece, piece, size);
        memcpy(slot->tokens, scratch->tokens, count * sizeof *scratch->tokens);
    }
    *out = scratch->tokens;
    *out_n = count;
    return ST_OK;
}
