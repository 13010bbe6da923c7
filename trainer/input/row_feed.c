/* row_feed.c: sends and receives the messages whose format is in row_feed.h. */
#include "trainer/input/row_feed.h"

#include <stdlib.h>
#include <string.h>

enum { KIND, BYTES, FIRST, NUMBERS = 17, TEXTS = 3 };
enum { MESSAGE_WELCOME = 1, MESSAGE_ROW, MESSAGE_LAST };
/* What the numbers of a ROW mean, in their order. */
enum {
    TOKENS = FIRST,
    DOCS,
    ITEMS,
    PATCHES,
    VIDEO_PATCHES,
    OPTIONAL, /* ROW_WEIGHTS, ROW_PREFIXES */
    TEXT,
    ROW_NUMBER = TEXT + TEXTS,
    IMAGES,
    BLOCK_BYTES,
    IMAGE_BYTES,
    DIGEST
};
_Static_assert(DIGEST + 2 == NUMBERS, "a digest is two numbers");

/* More than anything that is sent, and small enough that sums of sizes cannot overflow 64 bits. */
static const uint64_t COUNT_MOST = UINT64_C(1) << 31;

static status send_numbers(row_broadcast *f, const uint64_t n[NUMBERS])
{
    uint8_t bytes[NUMBERS * 8];
    for (int i = 0; i < NUMBERS; i++)
        store_u64(bytes + 8 * i, n[i]);
    return row_broadcast_send(f, bytes, sizeof bytes);
}

static status send_text(row_broadcast *f, uint64_t kind, uint64_t number, const char *text)
{
    uint64_t n[NUMBERS] = {[KIND] = kind, [BYTES] = strlen(text) + 1, [FIRST] = number};
    TRY(send_numbers(f, n));
    return row_broadcast_send(f, text, n[BYTES]);
}

status row_feed_welcome(row_broadcast *f, const char *welcome)
{
    return send_text(f, MESSAGE_WELCOME, 0, welcome);
}

status row_feed_last(row_broadcast *f, status how)
{
    return send_text(f, MESSAGE_LAST, (uint64_t)how, how == ST_END ? "" : status_text());
}

static size_t tensor_bytes(const row *r)
{
    st_tensor t[ROW_TENSORS];
    size_t n, bytes = 0;
    row_tensors(r, 1, t, &n);
    for (size_t i = 0; i < n; i++)
        bytes += t[i].data.size;
    return bytes;
}

static void texts_of(const row *r, const char *out[TEXTS])
{
    const char *text[TEXTS] = {r->cursor, r->quarantine, r->references};
    for (int i = 0; i < TEXTS; i++)
        out[i] = text[i] ? text[i] : "";
}

int64_t row_feed_bytes(const row *r)
{
    const char *text[TEXTS];
    size_t bytes = NUMBERS * 8 + tensor_bytes(r);
    texts_of(r, text);
    for (int i = 0; i < TEXTS; i++)
        bytes += strlen(text[i]) + 1;
    return (int64_t)bytes;
}

status row_feed_send(row_broadcast *f, const row *r, const frame *head)
{
    st_tensor t[ROW_TENSORS];
    size_t n_tensors;
    const char *text[TEXTS];
    uint64_t n[NUMBERS] = {[KIND] = MESSAGE_ROW,
                           [BYTES] = (uint64_t)row_feed_bytes(r) - NUMBERS * 8,
                           [TOKENS] = (uint64_t)r->n_tokens,
                           [DOCS] = (uint64_t)r->n_docs,
                           [ITEMS] = (uint64_t)r->n_items,
                           [PATCHES] = (uint64_t)r->n_patches,
                           [VIDEO_PATCHES] = (uint64_t)r->n_video_patches,
                           [OPTIONAL] = (r->loss_weight ? ROW_WEIGHTS : 0) |
                                        (r->doc_prefix ? ROW_PREFIXES : 0),
                           [ROW_NUMBER] = head->row,
                           [IMAGES] = head->n_images,
                           [BLOCK_BYTES] = head->block_bytes,
                           [IMAGE_BYTES] = head->image_bytes,
                           [DIGEST] = load_u64(head->digest.bytes),
                           [DIGEST + 1] = load_u64(head->digest.bytes + 8)};
    texts_of(r, text);
    for (int i = 0; i < TEXTS; i++)
        n[TEXT + i] = strlen(text[i]) + 1;
    TRY(send_numbers(f, n));
    row_tensors(r, 1, t, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        TRY(row_broadcast_send(f, t[i].data.data, t[i].data.size));
    for (int i = 0; i < TEXTS; i++)
        TRY(row_broadcast_send(f, text[i], n[TEXT + i]));
    return ST_OK;
}

/* ---- the receiving side ---- */

static status recv_numbers(row_broadcast *f, uint64_t n[NUMBERS])
{
    uint8_t bytes[NUMBERS * 8];
    TRY(row_broadcast_recv(f, bytes, sizeof bytes));
    for (int i = 0; i < NUMBERS; i++)
        n[i] = load_u64(bytes + 8 * i);
    return ST_OK;
}

static status unexpected(const row_broadcast *f, const uint64_t n[NUMBERS])
{
    return FAIL(ST_PROTOCOL, "rank %d sent a message of unknown form: kind %llu with %llu bytes",
                row_broadcast_source(f), (unsigned long long)n[KIND], (unsigned long long)n[BYTES]);
}

/* Receives the text after the numbers, on the heap. */
static status recv_text(row_broadcast *f, const uint64_t n[NUMBERS], char **out)
{
    if (n[BYTES] == 0 || n[BYTES] > COUNT_MOST)
        return unexpected(f, n);
    char *text = malloc(n[BYTES]);
    if (!text)
        return FAIL(ST_NO_MEMORY, "out of memory for a text of %llu bytes",
                    (unsigned long long)n[BYTES]);
    status st = row_broadcast_recv(f, text, n[BYTES]);
    if (st == ST_OK && text[n[BYTES] - 1] != 0)
        st = unexpected(f, n);
    if (st != ST_OK)
        free(text);
    else
        *out = text;
    return st;
}

static status recv_last(row_broadcast *f, const uint64_t n[NUMBERS])
{
    char *text = NULL;
    TRY(recv_text(f, n, &text));
    status how = n[FIRST] > ST_OK && n[FIRST] < ST_COUNT ? (status)n[FIRST] : ST_PROTOCOL;
    if (how != ST_END)
        how = FAIL(how, "rank %d, which receives this rank's rows: %s", row_broadcast_source(f),
                   text);
    free(text);
    return how;
}

status row_feed_await(row_broadcast *f, char **out_welcome)
{
    uint64_t n[NUMBERS];
    TRY(recv_numbers(f, n));
    if (n[KIND] == MESSAGE_LAST)
        return recv_last(f, n);
    return n[KIND] == MESSAGE_WELCOME ? recv_text(f, n, out_welcome) : unexpected(f, n);
}

static status recv_row(row_broadcast *f, const uint64_t n[NUMBERS], arena *a, row *out)
{
    st_tensor t[ROW_TENSORS];
    size_t n_tensors, bytes = 0;
    char *text[TEXTS];
    for (int i = TOKENS; i < TEXT + TEXTS; i++)
        if (n[i] > COUNT_MOST || (i >= TEXT && n[i] == 0))
            return unexpected(f, n);
    row r = {.n_tokens = (int64_t)n[TOKENS],
             .n_docs = (int64_t)n[DOCS],
             .n_items = (int64_t)n[ITEMS],
             .n_patches = (int64_t)n[PATCHES],
             .n_video_patches = (int64_t)n[VIDEO_PATCHES]};
    TRY(row_alloc(&r, a, (unsigned)n[OPTIONAL]));
    for (int i = 0; i < TEXTS; i++) {
        bytes += n[TEXT + i];
        TRY(arena_alloc(a, n[TEXT + i], (void **)&text[i]));
    }
    if (tensor_bytes(&r) + bytes != n[BYTES])
        return unexpected(f, n);
    row_tensors(&r, 1, t, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        /* The arena's memory was just allocated and is not const. */
        TRY(row_broadcast_recv(f, (void *)t[i].data.data, t[i].data.size));
    for (int i = 0; i < TEXTS; i++) {
        TRY(row_broadcast_recv(f, text[i], n[TEXT + i]));
        text[i][n[TEXT + i] - 1] = 0;
    }
    r.cursor = text[0];
    r.quarantine = text[1];
    r.references = text[2];
    *out = r;
    return ST_OK;
}

status row_feed_next(row_broadcast *f, arena *a, row *out, frame *out_head, int64_t *out_bytes)
{
    uint64_t n[NUMBERS];
    TRY(recv_numbers(f, n));
    if (n[KIND] == MESSAGE_LAST)
        return recv_last(f, n);
    if (n[KIND] != MESSAGE_ROW || n[IMAGES] > COUNT_MOST)
        return unexpected(f, n);
    TRY(recv_row(f, n, a, out));
    *out_head = (frame){.kind = KIND_ROW,
                        .row = n[ROW_NUMBER],
                        .n_images = (uint32_t)n[IMAGES],
                        .block_bytes = n[BLOCK_BYTES],
                        .image_bytes = n[IMAGE_BYTES]};
    store_u64(out_head->digest.bytes, n[DIGEST]);
    store_u64(out_head->digest.bytes + 8, n[DIGEST + 1]);
    *out_bytes = (int64_t)(NUMBERS * 8 + n[BYTES]);
    return ST_OK;
}
