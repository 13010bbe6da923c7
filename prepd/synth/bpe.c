#include "prepd/synth/bpe.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A distinct piece of the corpus as token ids. */
typedef struct piece {
    const char *text; /* in the corpus */
    int length;       /* bytes */
    int64_t count;
    int n;
    int ids[BPE_TOKEN_BYTES];
} piece;

typedef struct corpus {
    piece *pieces;
    int n, capacity;
} corpus;

/* Bytes whose symbol is the character of the same number; the other 68 take U+0100 on (spec 8.1).
 */
static bool prints_as_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Length of the first pre-token of ASCII text: the rules of spec 8.2 in their order. */
static int first_piece(const char *s, int n)
{
    static const char *const contractions[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    int i = 0;
    if (s[0] == '\'')
        for (size_t k = 0; k < sizeof contractions / sizeof *contractions; k++) {
            int length = (int)strlen(contractions[k]);
            if (length < n && strncasecmp(s + 1, contractions[k], (size_t)length) == 0)
                return 1 + length;
        }
    bool led = n > 1 && !isalnum((unsigned char)s[0]) && s[0] != '\n' && s[0] != '\r' &&
               isalpha((unsigned char)s[1]);
    if (led || isalpha((unsigned char)s[0])) {
        for (i = 1; i < n && isalpha((unsigned char)s[i]);)
            i++;
        return i;
    }
    if (isdigit((unsigned char)s[0]))
        return 1;
    i = s[0] == ' ' && n > 1 && ispunct((unsigned char)s[1]);
    if (ispunct((unsigned char)s[i])) {
        while (i < n && ispunct((unsigned char)s[i]))
            i++;
        while (i < n && (s[i] == '\n' || s[i] == '\r'))
            i++;
        return i;
    }
    int run = 0, after_newline = 0;
    for (; run < n && isspace((unsigned char)s[run]); run++)
        if (s[run] == '\n' || s[run] == '\r')
            after_newline = run + 1;
    if (after_newline)
        return after_newline;
    return run == n || run < 2 ? run : run - 1;
}

static status add_piece(corpus *c, const int byte_id[256], const char *s, int length, int64_t count)
{
    for (int i = 0; i < c->n; i++)
        if (c->pieces[i].length == length && memcmp(c->pieces[i].text, s, (size_t)length) == 0) {
            c->pieces[i].count += count;
            return ST_OK;
        }
    if (length > BPE_TOKEN_BYTES)
        return FAIL(ST_INTERNAL, "a piece of %d bytes; %d is the most", length, BPE_TOKEN_BYTES);
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 256;
        piece *grown = (piece *)realloc(c->pieces, (size_t)capacity * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %d pieces", capacity);
        c->pieces = grown;
        c->capacity = capacity;
    }
    piece *p = &c->pieces[c->n++];
    *p = (piece){.text = s, .length = length, .count = count, .n = length};
    for (int i = 0; i < length; i++)
        p->ids[i] = byte_id[(uint8_t)s[i]];
    return ST_OK;
}

/* Adds each piece's count to its pairs' entries, or clears those entries. */
static void count_pairs(const corpus *c, int n_tokens, int64_t *pairs, bool clear)
{
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k + 1 < c->pieces[i].n; k++) {
            int64_t at = (int64_t)c->pieces[i].ids[k] * n_tokens + c->pieces[i].ids[k + 1];
            pairs[at] = clear ? 0 : pairs[at] + c->pieces[i].count;
        }
}

/* The commonest adjacent pair, of equal ones the lowest ids; false if none occurs twice.
 * pairs [n_tokens^2] is all zero before and after: only the entries in use are ever touched. */
static bool best_pair(const corpus *c, int n_tokens, int64_t *pairs, int *out_left, int *out_right)
{
    int64_t best = 1, best_at = -1;
    count_pairs(c, n_tokens, pairs, false);
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k + 1 < c->pieces[i].n; k++) {
            int64_t at = (int64_t)c->pieces[i].ids[k] * n_tokens + c->pieces[i].ids[k + 1];
            if (pairs[at] > best || (pairs[at] == best && best_at >= 0 && at < best_at)) {
                best = pairs[at];
                best_at = at;
            }
        }
    count_pairs(c, n_tokens, pairs, true);
    if (best_at < 0)
        return false;
    *out_left = (int)(best_at / n_tokens);
    *out_right = (int)(best_at % n_tokens);
    return true;
}

static void merge_pair(corpus *c, int left, int right, int merged)
{
    for (int i = 0; i < c->n; i++) {
        piece *p = &c->pieces[i];
        int to = 0;
        for (int k = 0; k < p->n; k++) {
            bool here = k + 1 < p->n && p->ids[k] == left && p->ids[k + 1] == right;
            p->ids[to++] = here ? merged : p->ids[k];
            k += here;
        }
        p->n = to;
    }
}

status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out)
{
    int byte_id[256];
    corpus c = {0};
    status st = ST_OK;
    memset(out, 0, sizeof *out);
    if (max_merges > BPE_MAX_MERGES)
        max_merges = BPE_MAX_MERGES;
    /* The published order: bytes that print as themselves first, then the others. */
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
        for (const char *s = texts[i].text; *s;) {
            int length = first_piece(s, (int)strlen(s));
            TRY_OR(done, add_piece(&c, byte_id, s, length, texts[i].count));
            s += length;
        }
    int left, right;
    while (out->n_merges < max_merges && best_pair(&c, out->n_tokens, pairs, &left, &right)) {
        int merged = out->n_tokens++;
        memcpy(out->bytes[merged], out->bytes[left], (size_t)out->size[left]);
        memcpy(out->bytes[merged] + out->size[left], out->bytes[right], (size_t)out->size[right]);
        out->size[merged] = out->size[left] + out->size[right];
        out->left[out->n_merges] = left;
        out->right[out->n_merges++] = right;
        merge_pair(&c, left, right, merged);
    }
done:
    free(pairs);
    free(c.pieces);
    return st;
}
