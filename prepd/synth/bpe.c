/* bpe.c: training. The distinct pieces of the texts are kept as lists of token ids with how often
 * they occur; each round counts all pairs of neighbours, merges the commonest pair everywhere, and
 * notes the merge. */
#include "prepd/synth/bpe.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A distinct piece of the texts, as token ids. */
typedef struct piece {
    const char *text; /* where it first stands in the texts */
    int length;       /* bytes */
    int64_t count;    /* how often it occurs */
    int how_many;     /* of ids */
    int ids[BPE_TOKEN_BYTES];
} piece;

typedef struct corpus {
    piece *pieces;
    int count, capacity;
} corpus;

/* Whether the symbol of a byte in the vocabulary is the character of the same number. The other 68
 * bytes have the characters from U+0100 on (bytes_to_unicode of GPT-2's encoder.py). */
static bool prints_as_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The length of the first piece of an ASCII text. The rules are the alternatives of Qwen's
 * expression (SPLIT in bpe_write.c), in their order. */
static int first_piece(const char *text, int count)
{
    static const char *const contractions[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    int i = 0;
    if (text[0] == '\'')
        for (size_t k = 0; k < sizeof contractions / sizeof *contractions; k++) {
            int length = (int)strlen(contractions[k]);
            if (length < count && strncasecmp(text + 1, contractions[k], (size_t)length) == 0)
                return 1 + length;
        }
    bool led = count > 1 && !isalnum((unsigned char)text[0]) && text[0] != '\n' &&
               text[0] != '\r' && isalpha((unsigned char)text[1]);
    if (led || isalpha((unsigned char)text[0])) {
        for (i = 1; i < count && isalpha((unsigned char)text[i]);)
            i++;
        return i;
    }
    if (isdigit((unsigned char)text[0]))
        return 1;
    i = text[0] == ' ' && count > 1 && ispunct((unsigned char)text[1]);
    if (ispunct((unsigned char)text[i])) {
        while (i < count && ispunct((unsigned char)text[i]))
            i++;
        while (i < count && (text[i] == '\n' || text[i] == '\r'))
            i++;
        return i;
    }
    int run = 0, after_newline = 0;
    for (; run < count && isspace((unsigned char)text[run]); run++)
        if (text[run] == '\n' || text[run] == '\r')
            after_newline = run + 1;
    if (after_newline)
        return after_newline;
    return run == count || run < 2 ? run : run - 1;
}

static status add_piece(corpus *known, const int byte_id[256], const char *text, int length,
                        int64_t count)
{
    for (int i = 0; i < known->count; i++)
        if (known->pieces[i].length == length &&
            memcmp(known->pieces[i].text, text, (size_t)length) == 0) {
            known->pieces[i].count += count;
            return ST_OK;
        }
    if (length > BPE_TOKEN_BYTES)
        return FAIL(ST_INTERNAL, "a piece of the texts has %d bytes; the most is %d", length,
                    BPE_TOKEN_BYTES);
    if (known->count == known->capacity) {
        int capacity = known->capacity ? 2 * known->capacity : 256;
        piece *grown = (piece *)realloc(known->pieces, (size_t)capacity * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %d pieces", capacity);
        known->pieces = grown;
        known->capacity = capacity;
    }
    piece *span = &known->pieces[known->count++];
    *span = (piece){.text = text, .length = length, .count = count, .how_many = length};
    for (int i = 0; i < length; i++)
        span->ids[i] = byte_id[(uint8_t)text[i]];
    return ST_OK;
}

/* Adds the count of each piece to the entries of its pairs, or clears those entries. */
static void count_pairs(const corpus *known, int n_tokens, int64_t *pairs, bool clear)
{
    for (int i = 0; i < known->count; i++)
        for (int k = 0; k + 1 < known->pieces[i].how_many; k++) {
            int64_t at = (int64_t)known->pieces[i].ids[k] * n_tokens + known->pieces[i].ids[k + 1];
            pairs[at] = clear ? 0 : pairs[at] + known->pieces[i].count;
        }
}

/* Finds the commonest pair of neighbours, and of equally common ones that with the lowest ids.
 * False if none occurs twice. pairs [n_tokens^2] is all zero before and after, so only the entries
 * in use are ever touched. */
static bool best_pair(const corpus *known, int n_tokens, int64_t *pairs, int *out_left,
                      int *out_right)
{
    int64_t best = 1, best_at = -1;
    count_pairs(known, n_tokens, pairs, false);
    for (int i = 0; i < known->count; i++)
        for (int k = 0; k + 1 < known->pieces[i].how_many; k++) {
            int64_t at = (int64_t)known->pieces[i].ids[k] * n_tokens + known->pieces[i].ids[k + 1];
            if (pairs[at] > best || (pairs[at] == best && best_at >= 0 && at < best_at)) {
                best = pairs[at];
                best_at = at;
            }
        }
    count_pairs(known, n_tokens, pairs, true);
    if (best_at < 0)
        return false;
    *out_left = (int)(best_at / n_tokens);
    *out_right = (int)(best_at % n_tokens);
    return true;
}

static void merge_pair(corpus *known, int left, int right, int merged)
{
    for (int i = 0; i < known->count; i++) {
        piece *span = &known->pieces[i];
        int to = 0;
        for (int k = 0; k < span->how_many; k++) {
            bool here = k + 1 < span->how_many && span->ids[k] == left && span->ids[k + 1] == right;
            span->ids[to++] = here ? merged : span->ids[k];
            k += here;
        }
        span->how_many = to;
    }
}

status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out)
{
    int byte_id[256];
    corpus known = {0};
    status st = ST_OK;
    memset(out, 0, sizeof *out);
    if (max_merges > BPE_MAX_MERGES)
        max_merges = BPE_MAX_MERGES;
    /* The order of published vocabularies: first the bytes that print as themselves, then the
     * others. */
    for (int pass = 0; pass < 2; pass++)
        for (int byte = 0; byte < 256; byte++)
            if (prints_as_itself(byte) == (pass == 0)) {
                byte_id[byte] = out->n_tokens;
                out->bytes[out->n_tokens][0] = (uint8_t)byte;
                out->size[out->n_tokens++] = 1;
            }
    size_t most = BPE_BYTES + (size_t)max_merges;
    int64_t *pairs = (int64_t *)calloc(most * most, sizeof *pairs);
    if (!pairs)
        return FAIL(ST_NO_MEMORY, "no memory to count pairs of %zu tokens", most);
    for (int i = 0; i < n_texts; i++)
        for (const char *text = texts[i].text; *text;) {
            int length = first_piece(text, (int)strlen(text));
            TRY_OR(done, add_piece(&known, byte_id, text, length, texts[i].count));
            text += length;
        }
    int left, right;
    while (out->n_merges < max_merges && best_pair(&known, out->n_tokens, pairs, &left, &right)) {
        int merged = out->n_tokens++;
        memcpy(out->bytes[merged], out->bytes[left], (size_t)out->size[left]);
        memcpy(out->bytes[merged] + out->size[left], out->bytes[right], (size_t)out->size[right]);
        out->size[merged] = out->size[left] + out->size[right];
        out->left[out->n_merges] = left;
        out->right[out->n_merges++] = right;
        merge_pair(&known, left, right, merged);
    }
done:
    free(pairs);
    free(known.pieces);
    return st;
}
