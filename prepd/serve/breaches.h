/* breaches.h: machines whose workers break the protocol again and again, and how long they get no
 * work for it: pure state, no sockets, no clock.
 *
 * A breach costs no sample anything: the lease is given again. So a peer that is broken, or
 * malicious, could take the same late row for ever. The first FREE_BREACHES are forgiven; each
 * further one keeps work from all workers at that address twice as long as the one before, up to a
 * minute, as long as there are others (leasing.c). Every row that comes from there makes good for
 * one. */
#ifndef TESSERA_PREPD_SERVE_BREACHES_H
#define TESSERA_PREPD_SERVE_BREACHES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

enum { FREE_BREACHES = 3, BREACHERS = 64 };

typedef struct breacher {
    char host[WIRE_HOST_TEXT];
    int n;
    int64_t held_until_ns;
} breacher;

typedef struct breaches {
    breacher of[BREACHERS]; /* n 0: a free place; where all are taken the least held makes way */
} breaches;

void breach_note(breaches *b, const char *host, int64_t now_ns);
void breach_made_good(breaches *b, const char *host);
bool breach_is_held(const breaches *b, const char *host, int64_t now_ns);

#endif
