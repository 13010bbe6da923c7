/* claims.c: decides whether an index record that a worker told is used.
 *
 * What a remote worker tells is a claim. It counts once another worker tells the same, on another
 * machine if there is one.
 * Where two claims differ, a local worker decides, and a worker that told something else is
 * dismissed. What a local worker tells counts at once, and so does what the only worker tells,
 * since there is no other to ask.
 *
 * A claim travels with a lease of the same items (lease.h), so a worker that dies or leaves while
 * it confirms one changes nothing. */
#include <string.h>
#include <sys/types.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

static const int64_t LOADING_NS = 60000000000; /* time from JOIN to all fingerprints, at most */

static worker_seat *seat_of_number(const dispatch *d, uint64_t number)
{
    worker_seat *w = d->seats;
    while (w && w->number != number)
        w = w->next;
    return w;
}

/* Whether o can confirm what w told: it is local, or on another machine. */
static bool is_apart(const worker_seat *o, const worker_seat *w)
{
    return o->local || strcmp(o->host, w->host) != 0;
}

/* Whether to wait for o where w's record needs a second worker. A worker that may have no work is
 * not waited for: one that has not told its fingerprints in the time that loading takes, or one
 * whose address is held for breaches while w's is not (leasing.c). Such workers could come for
 * ever, and w would wait as long. */
static bool is_waited_for(const dispatch *d, const worker_seat *o, const worker_seat *w)
{
    const int64_t now = clock_ns();
    if (o == w || o->local)
        return o != w;
    if (breach_is_held(&d->breaches, o->from, now) && !breach_is_held(&d->breaches, w->from, now))
        return false;
    return o->proved ||
           (now - o->joined_ns < LOADING_NS && o->joined_ns - w->joined_ns < LOADING_NS);
}

static bool is_alone(const dispatch *d, const worker_seat *w)
{
    const worker_seat *o = d->seats;
    while (o && !is_waited_for(d, o, w))
        o = o->next;
    return !o;
}

bool claim_may_take(const void *asker, const lease *l)
{
    const dispatch *d = ((const claim_asker *)asker)->dispatch;
    const worker_seat *w = ((const claim_asker *)asker)->worker;
    if (l->n_claims == 0 || w->local)
        return true;
    if (l->n_claims > 1)
        return false;
    const worker_seat *told = seat_of_number(d, l->claim[0].by);
    if (!told || is_apart(w, told))
        return true;
    if (w == told)
        return is_alone(d, told);
    for (const worker_seat *o = d->seats; o; o = o->next)
        if (is_apart(o, told) && is_waited_for(d, o, told))
            return false; /* that worker is asked instead */
    return true;
}

static void dismiss_claimant(dispatch *d, uint64_t number, const source *s, lease_kind kind,
                             int64_t item)
{
    worker_seat *w = seat_of_number(d, number);
    if (!w)
        return;
    const char *what = kind == LEASE_IMAGES ? s->data->v->image_path(s->data, item) : s->name;
    const status st = FAIL_IN(
        ST_PROTOCOL, what,
        "a remote worker (pid %d on %s) told a record of %s %lld for the index that differs "
        "from what another worker found: it is dismissed, and its record is not used",
        (int)w->pid, w->host, kind == LEASE_IMAGES ? "image" : "the text of sample",
        (long long)item);
    log_warn("worker dismissed: %s", status_text());
    if (wire_send_error(d->workers, &w->peer, 0, st) != ST_OK)
        log_debug("worker could not be told to leave: %s", status_text());
    breach_note(&d->breaches, w->from, clock_ns());
    seat_gone(d, w, LOSS_BREACH, "dismissed");
}

/* Where the item stands in the lease. */
static int64_t place_in(const lease *l, int64_t item)
{
    int64_t k = 0;
    while (l->item[k] != item)
        k++;
    return k;
}

/* Whether w's record counts. A local worker decides; of a remote one, another must say the same. */
static bool counts(const dispatch *d, const lease *l, int64_t item, uint64_t facts,
                   const worker_seat *w)
{
    if (w->local || (l->n_claims == 0 && is_alone(d, w)))
        return true;
    return l->n_claims == 1 && l->claim[0].facts[place_in(l, item)] == facts;
}

/* Leases the items whose records do not count yet once more, together with what was claimed of them
 * so far and what w claims. */
static status lease_again(dispatch *d, const lease *l, const int64_t *item, const uint64_t *facts,
                          int64_t n, const worker_seat *w)
{
    uint64_t *before;
    lease *again;
    TRY(arena_calloc(&d->scratch, (size_t)n + 1, sizeof(*before), (void **)&before));
    TRY(lease_new(&d->book, l->kind, l->owner, 0, item, n, &again));
    for (int64_t k = 0; l->n_claims > 0 && k < n; k++)
        before[k] = l->claim[0].facts[place_in(l, item[k])];
    status st = l->n_claims > 0 ? lease_add_claim(again, l->claim[0].by, before) : ST_OK;
    if (st == ST_OK)
        st = lease_add_claim(again, w->number, facts);
    if (st == ST_OK)
        lease_book_return(&d->book, again);
    else
        lease_free(&again);
    return st;
}

/* Dismisses the workers that told something else of a settled item. */
static void dismiss_deviants(dispatch *d, const lease *l, int64_t item, uint64_t facts)
{
    for (int c = 0; c < l->n_claims; c++)
        if (l->claim[c].facts[place_in(l, item)] != facts)
            dismiss_claimant(d, l->claim[c].by, l->owner, l->kind, item);
}

status claims_settle(dispatch *d, const lease *l, const int64_t *item, const uint64_t *facts,
                     int64_t n, const worker_seat *w, const char *from, bool *out_settled)
{
    int64_t *open;
    uint64_t *open_facts;
    int64_t n_open = 0;
    arena_reset(&d->scratch);
    TRY(arena_calloc(&d->scratch, (size_t)n + 1, sizeof(*open), (void **)&open));
    TRY(arena_calloc(&d->scratch, (size_t)n + 1, sizeof(*open_facts), (void **)&open_facts));
    for (int64_t k = 0; k < n; k++) {
        out_settled[k] = counts(d, l, item[k], facts[k], w);
        if (!out_settled[k] && l->n_claims == 1 && l->claim[0].by == w->number)
            return FAIL_IN(ST_PROTOCOL, from, "the worker told two different records of item %lld",
                           (long long)item[k]);
        if (out_settled[k])
            continue;
        open[n_open] = item[k];
        open_facts[n_open++] = facts[k];
    }
    if (n_open > 0)
        TRY(lease_again(d, l, open, open_facts, n_open, w));
    for (int64_t k = 0; k < n; k++)
        if (out_settled[k])
            dismiss_deviants(d, l, item[k], facts[k]);
    return ST_OK;
}

void claims_want_local(dispatch *d)
{
    const lease *l = d->book.lost;
    while (l && l->n_claims < LEASE_MAX_CLAIMS)
        l = l->next;
    if (!l || d->local.target > 0 || d->draining)
        return;
    log_warn("two remote workers tell different records of the same items for the index; a local "
             "worker is started to decide");
    local_scale(d, 1);
}
