/* sample_failures.c: a sample of which a worker says that it cannot be decoded.
 *
 * Whoever says so, a decider tries the sample alone, another process than the one that said it
 * where there is one. If it fails there too, the sample is bad. If it does not, and it was no
 * decider that said so, the key of that worker is excluded: no worker can take samples out of a
 * training by its word. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

status failure_told(lease *leased, int64_t item, const char *cause, const worker_seat *worker)
{
    failure **at = &leased->failures;
    while (*at && (*at)->item != item)
        at = &(*at)->next;
    if (*at)
        return ST_OK;
    failure *told = (failure *)calloc(1, sizeof *told);
    if (told)
        told->cause = strdup(cause);
    if (!told || !told->cause) {
        free(told);
        return FAIL(ST_NO_MEMORY, "no memory for the failure of a sample");
    }
    told->item = item;
    told->by = worker->number;
    /* What a worker says of files that the daemon did not send is the daemon's own word. */
    told->account = worker->decider || !leased->all_sent ? 0 : worker->of->number;
    *at = told;
    return ST_OK;
}

static bool is_tried(const lease *leased)
{
    return leased->failures && lease_solo_item(leased) == leased->failures->item;
}

bool failure_may_try(const dispatch *state, const worker_seat *worker, const lease *leased)
{
    return !is_tried(leased) || leased->failures->by != worker->number ||
           !decider_is_here(state, worker->number);
}

void failure_denied(dispatch *state, lease *leased, const worker_seat *worker)
{
    char why[128];
    if (!is_tried(leased))
        return;
    const failure *told = leased->failures;
    const int64_t id = lease_sample(told->item);
    const uint64_t number = told->account;
    if (number) {
        snprintf(why, sizeof why, "it said that sample %lld cannot be decoded (\"%.60s\")",
                 (long long)id, told->cause);
    } else {
        outside_warn(
            &state->outside,
            "sample %lld, which one of this machine's workers could not decode (\"%s\"), was "
            "decoded by pid %d",
            (long long)id, told->cause, (int)worker->pid);
    }
    lease_drop_failure(leased);
    leased->decide = true; /* whoever could not may not be able to again */
    if (number)
        key_contradicted(state, number, why);
}

/* Whether all that the item stands for is blank in the consumer's rows by now. Then no worker
 * decodes it, so a trial proves nothing. */
static bool is_blank(const lease *leased, int64_t item)
{
    const consumer_seat *consumer = leased->owner;
    int64_t id;
    for (int64_t place = 0; lease_next_hit(leased, item, &place, &id);)
        if (!blank_cause(consumer, id))
            return false;
    return true;
}

void failures_go_on(dispatch *state)
{
    for (lease *leased = state->book.lost; leased; leased = leased->next) {
        while (leased->failures && is_blank(leased, leased->failures->item)) {
            if (is_tried(leased))
                lease_end_alone(leased);
            lease_drop_failure(leased);
        }
        if (leased->failures && !leased->solo)
            lease_try_alone(leased, leased->failures->item);
    }
}
