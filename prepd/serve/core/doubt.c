/* doubt.c: a row in doubt, and the rows that are compared for it. */
#include "prepd/serve/core/doubt.h"

#include <stdlib.h>

doubt *doubt_new(uint64_t number, int64_t now_ns)
{
    doubt *held = (doubt *)calloc(1, sizeof *held);
    if (held) {
        held->account = number;
        held->since_ns = now_ns;
    }
    return held;
}

void doubt_free(doubt **out)
{
    doubt *held = *out;
    if (!held)
        return;
    for (int k = 0; k < held->n_made; k++)
        wire_msg_free(&held->made[k]);
    free(held->tag);
    free(held);
    *out = NULL;
}

bool doubt_has_made(const doubt *held, uint64_t number)
{
    bool made = false;
    for (int k = 0; held && k < held->n_by; k++)
        made |= held->by[k] == number;
    return made;
}

int doubt_rows(const lease *leased, const wire_msg *out_rows[2])
{
    const doubt *held = leased->doubt;
    for (int k = 0; held && k < held->n_made; k++)
        out_rows[k] = held->made[k];
    return held ? held->n_made : 0;
}

void doubt_killed(doubt *held)
{
    enum { MOST_DEATHS = 2 };
    if (++held->deaths < MOST_DEATHS)
        return;
    while (held->n_made > 0)
        wire_msg_free(&held->made[--held->n_made]);
}

void doubt_void(const accounts *known, lease *leased)
{
    if (!leased->doubt)
        return;
    account *maker = account_of(known, leased->doubt->account);
    if (maker)
        account_watch(maker);
    doubt_free(&leased->doubt);
    leased->decide = true;
}
