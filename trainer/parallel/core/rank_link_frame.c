/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_frame.c: implements rank_link_frame.h. Everything that arrives is checked before it is
 * used, since any process can connect to the port. */
#include "trainer/parallel/core/rank_link_frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[4] = {'T', 'S', 'R', 'K'};
enum { HELLO_NUMBERS = 12, LINE_MAX_SHOWN = 200 };

/* The largest payload that a kind may have. */
static size_t most_bytes(int kind)
{
    switch (kind) {
    case CONTROL_HELLO:
        return CONTROL_HELLO_MAX;
    case CONTROL_WELCOME:
        return CONTROL_ID_BYTES;
    case CONTROL_BYE:
        return 0;
    default:
        return CONTROL_TEXT_MAX;
    }
}

void rank_link_header_put(uint8_t out[CONTROL_HEADER], rank_link_kind kind, size_t size)
{
    memcpy(out, magic, sizeof magic);
    store_u16(out + 4, CONTROL_PROTOCOL);
    store_u16(out + 6, (uint16_t)kind);
    store_u32(out + 8, (uint32_t)size);
}

status rank_link_header_get(const uint8_t in[CONTROL_HEADER], rank_link_kind *out_kind,
                            size_t *out_size)
{
    int protocol = load_u16(in + 4), kind = load_u16(in + 6);
    size_t size = load_u32(in + 8);
    if (memcmp(in, magic, sizeof magic) != 0)
        return FAIL(ST_PROTOCOL, "what it sends is not from a rank of this program");
    if (protocol != CONTROL_PROTOCOL)
        return FAIL(ST_PROTOCOL,
                    "it is another version of the program: its rank link has protocol %d, this "
                    "one %d",
                    protocol, CONTROL_PROTOCOL);
    if (kind < CONTROL_HELLO || kind > CONTROL_LATE)
        return FAIL(ST_PROTOCOL, "it sent a message of unknown kind %d", kind);
    if (size > most_bytes(kind))
        return FAIL(ST_PROTOCOL, "it sent a message of kind %d with %zu bytes; the limit is %zu",
                    kind, size, most_bytes(kind));
    *out_kind = (rank_link_kind)kind;
    *out_size = size;
    return ST_OK;
}

status rank_link_hello_put(const rank_link_hello *hello, uint8_t **out, size_t *out_size)
{
    const char *text[] = {hello->host, hello->version, hello->options};
    size_t size = HELLO_NUMBERS;
    for (int i = 0; i < 3; i++)
        size += strlen(text[i]) + 1;
    if (size > CONTROL_HELLO_MAX)
        return FAIL(ST_CONFIG,
                    "the options as text are %zu bytes long, which is more than ranks "
                    "can exchange",
                    size);
    uint8_t *at = malloc(size);
    if (!at)
        return FAIL(ST_NO_MEMORY, "no memory for the first message of a rank, %zu bytes", size);
    *out = at;
    *out_size = size;
    store_u32(at, hello->rank);
    store_u32(at + 4, hello->size);
    store_u32(at + 8, hello->pid);
    at += HELLO_NUMBERS;
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(text[i]) + 1;
        memcpy(at, text[i], length);
        at += length;
    }
    return ST_OK;
}

status rank_link_hello_get(span payload, rank_link_hello *out)
{
    const char **text[] = {&out->host, &out->version, &out->options};
    size_t at = HELLO_NUMBERS;
    if (payload.size < HELLO_NUMBERS)
        return FAIL(ST_PROTOCOL, "its first message has only %zu bytes", payload.size);
    out->rank = load_u32(payload.data);
    out->size = load_u32(payload.data + 4);
    out->pid = load_u32(payload.data + 8);
    for (int i = 0; i < 3; i++) {
        const char *start = (const char *)payload.data + at;
        const char *end = at < payload.size ? memchr(start, 0, payload.size - at) : NULL;
        if (!end)
            return FAIL(ST_PROTOCOL, "a text of its first message has no end");
        *text[i] = start;
        at += (size_t)(end - start) + 1;
    }
    if (at != payload.size)
        return FAIL(ST_PROTOCOL, "its first message has %zu bytes too many", payload.size - at);
    return ST_OK;
}

/* Whether the option of this line may differ from rank to rank. */
static bool is_own(const char *line)
{
    static const char *const own[] = {"prepd.endpoint:", "log.", "training.threads:"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(line, own[i], strlen(own[i])) == 0)
            return true;
    return false;
}

bool rank_link_options_differ(const char *ours, const char *theirs, char *out, size_t size)
{
    while (*ours || *theirs) {
        size_t our_size = strcspn(ours, "\n"), their_size = strcspn(theirs, "\n");
        if ((our_size != their_size || memcmp(ours, theirs, our_size) != 0) && !is_own(ours)) {
            size_t key = strcspn(theirs, ":");
            bool same_key = key < their_size && strncmp(ours, theirs, key + 1) == 0;
            const char *value = same_key ? theirs + key + 1 : theirs;
            int shown = (int)(same_key ? their_size - key - 1 : their_size);
            snprintf(out, size, "%.*s here,%s%.*s there",
                     (int)(our_size < LINE_MAX_SHOWN ? our_size : LINE_MAX_SHOWN), ours,
                     same_key ? "" : " ", shown < LINE_MAX_SHOWN ? shown : LINE_MAX_SHOWN, value);
            return true;
        }
        ours += our_size + (ours[our_size] == '\n');
        theirs += their_size + (theirs[their_size] == '\n');
    }
    return false;
}
