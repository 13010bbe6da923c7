/* wire_peer.c: the name of a peer in logs, and texts without it for the peer itself. */
#include <stdio.h>
#include <string.h>

#include "proto/wire.h"

static const char PEER_WORD[] = "peer ";

void wire_peer_print(const wire_peer *peer, char out[WIRE_PEER_TEXT])
{
    enum { SHOWN = 64 };
    static const char digits[] = "0123456789abcdef";
    strcpy(out, PEER_WORD);
    char *at = out + strlen(PEER_WORD);
    for (size_t i = 0; i < peer->size && i < SHOWN; i++) {
        *at++ = digits[peer->id[i] >> 4];
        *at++ = digits[peer->id[i] & 15];
    }
    *at = 0;
    if (peer->size > SHOWN)
        strcpy(at, "..");
    if (peer->size == 0)
        strcpy(at, "unnamed");
}

const char *wire_peer_text(void)
{
    status_note note = *status_last();
    if (strncmp(note.input, PEER_WORD, strlen(PEER_WORD)) == 0) {
        snprintf(note.input, sizeof note.input, "%s", note.offset >= 0 ? "your message" : "");
        status_set(&note);
    }
    return status_text();
}
