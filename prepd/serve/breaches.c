/* breaches.c: a small table of addresses, with their breaches and the time until which each gets no
 * work. */
#include "prepd/serve/breaches.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DOUBLED = 6 };
static const int64_t FIRST_HOLD_NS = 1000000000, LONGEST_HOLD_NS = 60000000000;

static breacher *find_breacher(const breaches *b, const char *host)
{
    for (int i = 0; i < BREACHERS; i++)
        if (b->of[i].n_breaches > 0 && strcmp(b->of[i].host, host) == 0)
            return (breacher *)&b->of[i];
    return NULL;
}

static breacher *place_for(breaches *b, const char *host)
{
    breacher *least = &b->of[0];
    for (int i = 0; i < BREACHERS; i++) {
        breacher *x = &b->of[i];
        if (x->n_breaches == 0 || x->held_until_ns < least->held_until_ns)
            least = x;
        if (x->n_breaches == 0)
            break;
    }
    *least = (breacher){0};
    snprintf(least->host, sizeof least->host, "%s", host);
    return least;
}

void breach_note(breaches *b, const char *host, int64_t now_ns)
{
    breacher *x = find_breacher(b, host);
    if (!x)
        x = place_for(b, host);
    x->n_breaches++;
    const int over = x->n_breaches - FREE_BREACHES;
    if (over <= 0)
        return;
    int64_t hold = FIRST_HOLD_NS << (over - 1 < MAX_DOUBLED ? over - 1 : MAX_DOUBLED);
    hold = hold < LONGEST_HOLD_NS ? hold : LONGEST_HOLD_NS;
    x->held_until_ns = now_ns + hold;
}

void breach_made_good(breaches *b, const char *host)
{
    breacher *x = find_breacher(b, host);
    if (x)
        x->n_breaches--;
}

bool breach_is_held(const breaches *b, const char *host, int64_t now_ns)
{
    const breacher *x = find_breacher(b, host);
    return x && now_ns < x->held_until_ns;
}
