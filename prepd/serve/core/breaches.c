/* breaches.c: a small table of addresses, with their breaches and the time until which each gets no
 * work. */
#include "prepd/serve/core/breaches.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DOUBLED = 6 };
static const int64_t FIRST_HOLD_NS = 1000000000, LONGEST_HOLD_NS = 60000000000;

static breacher *find_breacher(const breaches *list, const char *host)
{
    for (int i = 0; i < list->used; i++)
        if (list->of[i].n_breaches > 0 && strcmp(list->of[i].host, host) == 0)
            return (breacher *)&list->of[i];
    return NULL;
}

static breacher *place_for(breaches *list, const char *host)
{
    breacher *least = &list->of[0];
    for (int i = 0; i < BREACHERS; i++) {
        breacher *peer = &list->of[i];
        if (peer->n_breaches == 0 || peer->held_until_ns < least->held_until_ns)
            least = peer;
        if (peer->n_breaches == 0)
            break;
    }
    if (least - list->of >= list->used)
        list->used = (int)(least - list->of) + 1;
    *least = (breacher){0};
    snprintf(least->host, sizeof least->host, "%s", host);
    return least;
}

void breach_note(breaches *list, const char *host, int64_t now_ns)
{
    breacher *peer = find_breacher(list, host);
    if (!peer)
        peer = place_for(list, host);
    peer->n_breaches++;
    const int over = peer->n_breaches - FREE_BREACHES;
    if (over <= 0)
        return;
    int64_t hold = FIRST_HOLD_NS << (over - 1 < MAX_DOUBLED ? over - 1 : MAX_DOUBLED);
    hold = hold < LONGEST_HOLD_NS ? hold : LONGEST_HOLD_NS;
    peer->held_until_ns = now_ns + hold;
}

void breach_made_good(breaches *list, const char *host)
{
    breacher *peer = find_breacher(list, host);
    if (peer)
        peer->n_breaches--;
}

bool breach_is_held(const breaches *list, const char *host, int64_t now_ns)
{
    const breacher *peer = find_breacher(list, host);
    return peer && now_ns < peer->held_until_ns;
}
