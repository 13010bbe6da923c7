/* breaches.h: remembers which machines' workers break the protocol again and again, and for how
 * long these get no work. Pure state: no sockets, no clock.
 *
 * A breach costs no sample anything: the lease is given again. So a broken or malicious peer could
 * take the same late row for ever. The first FREE_BREACHES of an address are forgiven. After each
 * further one, all workers at that address get no work for twice as long as after the one before,
 * up to a minute, as long as there are other workers (leasing.c). Every row that comes from the
 * address makes up for one breach. */
#ifndef TESSERA_PREPD_SERVE_CORE_BREACHES_H
#define TESSERA_PREPD_SERVE_CORE_BREACHES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/wire.h"

enum { FREE_BREACHES = 3, BREACHERS = 64 };

typedef struct breacher {
    char host[WIRE_HOST_TEXT]; /* address of the connection */
    int n_breaches;            /* 0: a free place */
    int64_t held_until_ns;
} breacher;

/* It starts as zeros. If all places are taken, the entry whose hold ends first is replaced. */
typedef struct breaches {
    breacher of[BREACHERS];
    int used; /* the places from here on were never taken */
} breaches;

void breach_note(breaches *breaches, const char *host, int64_t now_ns);
void breach_made_good(breaches *breaches, const char *host);
/* Whether workers at that address get no work now. */
bool breach_is_held(const breaches *breaches, const char *host, int64_t now_ns);

#endif
