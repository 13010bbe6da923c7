/* SPDX-License-Identifier: Apache-2.0 */
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

static status send_numbers(row_broadcast *feed, const uint64_t numbers[NUMBERS])
{
    uint8_t bytes[NUMBERS * 8];
    for (int i = 0; i < NUMBERS; i++)
        store_u64(bytes + 8 * i, numbers[i]);
    return row_broadcast_send(feed, bytes, sizeof bytes);
}

static status send_text(row_broadcast *feed, uint64_t kind, uint64_t number, const char *text)
{
    uint64_t numbers[NUMBERS] = {[KIND] = kind, [BYTES] = strlen(text) + 1, [FIRST] = number};
    TRY(send_numbers(feed, numbers));
    return row_broadcast_send(feed, text, numbers[BYTES]);
}

status row_feed_welcome(row_broadcast *feed, const char *welcome)
{
    return send_text(feed, MESSAGE_WELCOME, 0, welcome);
}

status row_feed_last(row_broadcast *feed, status how)
{
    return send_text(feed, MESSAGE_LAST, (uint64_t)how, how == ST_END ? "" : status_text());
}

static size_t tensor_bytes(const row *packed)
{
    st_tensor tensor[ROW_TENSORS];
    size_t numbers, bytes = 0;
    row_tensors(packed, 1, tensor, &numbers);
    for (size_t i = 0; i < numbers; i++)
        bytes += tensor[i].data.size;
    return bytes;
}

static void texts_of(const row *packed, const char *out[TEXTS])
{
    const char *text[TEXTS] = {packed->cursor, packed->quarantine, packed->references};
    for (int i = 0; i < TEXTS; i++)
        out[i] = text[i] ? text[i] : "";
}

int64_t row_feed_bytes(const row *packed)
{
    const char *text[TEXTS];
    size_t bytes = NUMBERS * 8 + tensor_bytes(packed);
    texts_of(packed, text);
    for (int i = 0; i < TEXTS; i++)
        bytes += strlen(text[i]) + 1;
    return (int64_t)bytes;
}

status row_feed_send(row_broadcast *feed, const row *packed, const frame *head)
{
    st_tensor tensor[ROW_TENSORS];
    size_t n_tensors;
    const char *text[TEXTS];
    uint64_t numbers[NUMBERS] = {[KIND] = MESSAGE_ROW,
                                 [BYTES] = (uint64_t)row_feed_bytes(packed) - NUMBERS * 8,
                                 [TOKENS] = (uint64_t)packed->n_tokens,
                                 [DOCS] = (uint64_t)packed->n_docs,
                                 [ITEMS] = (uint64_t)packed->n_items,
                                 [PATCHES] = (uint64_t)packed->n_patches,
                                 [VIDEO_PATCHES] = (uint64_t)packed->n_video_patches,
                                 [OPTIONAL] = (packed->loss_weight ? ROW_WEIGHTS : 0) |
                                              (packed->doc_prefix ? ROW_PREFIXES : 0),
                                 [ROW_NUMBER] = head->row,
                                 [IMAGES] = head->n_images,
                                 [BLOCK_BYTES] = head->block_bytes,
                                 [IMAGE_BYTES] = head->image_bytes,
                                 [DIGEST] = load_u64(head->digest.bytes),
                                 [DIGEST + 1] = load_u64(head->digest.bytes + 8)};
    texts_of(packed, text);
    for (int i = 0; i < TEXTS; i++)
        numbers[TEXT + i] = strlen(text[i]) + 1;
    TRY(send_numbers(feed, numbers));
    row_tensors(packed, 1, tensor, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        TRY(row_broadcast_send(feed, tensor[i].data.data, tensor[i].data.size));
    for (int i = 0; i < TEXTS; i++)
        TRY(row_broadcast_send(feed, text[i], numbers[TEXT + i]));
    return ST_OK;
}

/* ---- the receiving side ---- */

static status recv_numbers(row_broadcast *feed, uint64_t numbers[NUMBERS])
{
    uint8_t bytes[NUMBERS * 8];
    TRY(row_broadcast_recv(feed, bytes, sizeof bytes));
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = load_u64(bytes + 8 * i);
    return ST_OK;
}

static status unexpected(const row_broadcast *feed, const uint64_t numbers[NUMBERS])
{
    return FAIL(ST_PROTOCOL, "rank %d sent a message of unknown form: kind %llu with %llu bytes",
                row_broadcast_source(feed), (unsigned long long)numbers[KIND],
                (unsigned long long)numbers[BYTES]);
}

/* Receives the text after the numbers, on the heap. */
static status recv_text(row_broadcast *feed, const uint64_t numbers[NUMBERS], char **out)
{
    if (numbers[BYTES] == 0 || numbers[BYTES] > COUNT_MOST)
        return unexpected(feed, numbers);
    char *text = malloc(numbers[BYTES]);
    if (!text)
        return FAIL(ST_NO_MEMORY, "out of memory for a text of %llu bytes",
                    (unsigned long long)numbers[BYTES]);
    status st = row_broadcast_recv(feed, text, numbers[BYTES]);
    if (st == ST_OK && text[numbers[BYTES] - 1] != 0)
        st = unexpected(feed, numbers);
    if (st != ST_OK)
        free(text);
    else
        *out = text;
    return st;
}

static status recv_last(row_broadcast *feed, const uint64_t numbers[NUMBERS])
{
    char *text = NULL;
    TRY(recv_text(feed, numbers, &text));
    status how =
        numbers[FIRST] > ST_OK && numbers[FIRST] < ST_COUNT ? (status)numbers[FIRST] : ST_PROTOCOL;
    if (how != ST_END)
        how = FAIL(how, "rank %d, which receives this rank's rows: %s", row_broadcast_source(feed),
                   text);
    free(text);
    return how;
}

status row_feed_await(row_broadcast *feed, char **out_welcome)
{
    uint64_t numbers[NUMBERS];
    TRY(recv_numbers(feed, numbers));
    if (numbers[KIND] == MESSAGE_LAST)
        return recv_last(feed, numbers);
    return numbers[KIND] == MESSAGE_WELCOME ? recv_text(feed, numbers, out_welcome)
                                            : unexpected(feed, numbers);
}

static status recv_row(row_broadcast *feed, const uint64_t numbers[NUMBERS], arena *memory,
                       row *out)
{
    st_tensor tensor[ROW_TENSORS];
    size_t n_tensors, bytes = 0;
    char *text[TEXTS];
    for (int i = TOKENS; i < TEXT + TEXTS; i++)
        if (numbers[i] > COUNT_MOST || (i >= TEXT && numbers[i] == 0))
            return unexpected(feed, numbers);
    row packed = {.n_tokens = (int64_t)numbers[TOKENS],
                  .n_docs = (int64_t)numbers[DOCS],
                  .n_items = (int64_t)numbers[ITEMS],
                  .n_patches = (int64_t)numbers[PATCHES],
                  .n_video_patches = (int64_t)numbers[VIDEO_PATCHES]};
    TRY(row_alloc(&packed, memory, (unsigned)numbers[OPTIONAL]));
    for (int i = 0; i < TEXTS; i++) {
        bytes += numbers[TEXT + i];
        TRY(arena_alloc(memory, numbers[TEXT + i], (void **)&text[i]));
    }
    if (tensor_bytes(&packed) + bytes != numbers[BYTES])
        return unexpected(feed, numbers);
    row_tensors(&packed, 1, tensor, &n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        /* The arena's memory was just allocated and is not const. */
        TRY(row_broadcast_recv(feed, (void *)tensor[i].data.data, tensor[i].data.size));
    for (int i = 0; i < TEXTS; i++) {
        TRY(row_broadcast_recv(feed, text[i], numbers[TEXT + i]));
        text[i][numbers[TEXT + i] - 1] = 0;
    }
    packed.cursor = text[0];
    packed.quarantine = text[1];
    packed.references = text[2];
    *out = packed;
    return ST_OK;
}

status row_feed_next(row_broadcast *feed, arena *memory, row *out, frame *out_head,
                     int64_t *out_bytes)
{
    uint64_t numbers[NUMBERS];
    TRY(recv_numbers(feed, numbers));
    if (numbers[KIND] == MESSAGE_LAST)
        return recv_last(feed, numbers);
    if (numbers[KIND] != MESSAGE_ROW || numbers[IMAGES] > COUNT_MOST)
        return unexpected(feed, numbers);
    TRY(recv_row(feed, numbers, memory, out));
    *out_head = (frame){.kind = KIND_ROW,
                        .row = numbers[ROW_NUMBER],
                        .n_images = (uint32_t)numbers[IMAGES],
                        .block_bytes = numbers[BLOCK_BYTES],
                        .image_bytes = numbers[IMAGE_BYTES]};
    store_u64(out_head->digest.bytes, numbers[DIGEST]);
    store_u64(out_head->digest.bytes + 8, numbers[DIGEST + 1]);
    *out_bytes = (int64_t)(NUMBERS * 8 + numbers[BYTES]);
    return ST_OK;
}
