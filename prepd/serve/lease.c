/* lease.c: the book of lost leases, and the trial of a lease's items one by one (lease.h). */
#include "prepd/serve/lease.h"

#include <stdlib.h>
#include <string.h>

void lease_book_init(lease_book *b, int solo_limit)
{
    *b = (lease_book){.next_number = 1, .solo_limit = solo_limit};
}

status lease_new(lease_book *b, lease_kind kind, void *owner, uint64_t row, const int64_t *item,
                 int64_t n_items, lease **out)
{
    lease *l = calloc(1, sizeof(*l));
    int64_t *items = calloc((size_t)n_items + 1, sizeof(*items));
    if (!l || !items) {
        free(l);
        free(items);
        return FAIL(ST_NO_MEMORY, "no memory for a lease of %lld items", (long long)n_items);
    }
    if (n_items > 0)
        memcpy(items, item, (size_t)n_items * sizeof(*items));
    *l = (lease){.kind = kind,
                 .number = b->next_number++,
                 .owner = owner,
                 .row = row,
                 .n_items = n_items,
                 .item = items,
                 .suspect = -1};
    *out = l;
    return ST_OK;
}

void lease_free(lease **l)
{
    if (!*l)
        return;
    free((*l)->item);
    free((*l)->untried);
    for (int i = 0; i < (*l)->n_claims; i++)
        free((*l)->claim[i].facts);
    free(*l);
    *l = NULL;
}

static void push_front(lease_book *b, lease *l)
{
    l->next = b->lost;
    b->lost = l;
}

void lease_unbegun(lease_book *b, lease *l)
{
    push_front(b, l);
}

void lease_book_return(lease_book *b, lease *l)
{
    lease **at = &b->lost;
    while (*at)
        at = &(*at)->next;
    l->next = NULL;
    *at = l;
}

static lease *take_first(lease_book *b, bool solo, lease_filter may, const void *user)
{
    for (lease **at = &b->lost; *at; at = &(*at)->next) {
        lease *l = *at;
        if (l->solo != solo || !may(user, l))
            continue;
        *at = l->next;
        l->next = NULL;
        l->reached = 0; /* the worker that gets it begins anew */
        return l;
    }
    return NULL;
}

lease *lease_book_take_if(lease_book *b, bool fresh, lease_filter may, const void *user)
{
    lease *l = fresh ? take_first(b, true, may, user) : NULL;
    return l ? l : take_first(b, false, may, user);
}

static bool any_may(const void *user, const lease *l)
{
    (void)user, (void)l;
    return true;
}

lease *lease_book_take(lease_book *b, bool fresh)
{
    return lease_book_take_if(b, fresh, any_may, NULL);
}

bool lease_book_has(const lease_book *b, bool fresh, lease_filter may, const void *user)
{
    for (const lease *l = b->lost; l; l = l->next)
        if ((fresh || !l->solo) && may(user, l))
            return true;
    return false;
}

bool lease_book_wants_fresh(const lease_book *b)
{
    for (const lease *l = b->lost; l; l = l->next)
        if (l->solo)
            return true;
    return false;
}

void lease_book_forget(lease_book *b, const void *owner)
{
    lease **at = &b->lost;
    while (*at) {
        lease *l = *at;
        if (l->owner != owner) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        lease_free(&l);
    }
}

int64_t lease_book_waiting(const lease_book *b)
{
    int64_t n = 0;
    for (const lease *l = b->lost; l; l = l->next)
        n++;
    return n;
}

int64_t lease_solo_item(const lease *l)
{
    return l->solo && l->n_untried > 0 ? l->untried[0] : -1;
}

bool lease_has(const lease *l, int64_t item)
{
    for (int64_t k = 0; k < l->n_items; k++)
        if (l->item[k] == item)
            return true;
    return false;
}

bool lease_on(lease *l, int64_t item)
{
    l->suspect = item;
    for (int64_t k = l->reached; k < l->n_items; k++)
        if (l->item[k] == item) {
            l->reached = k + 1;
            return true;
        }
    return false;
}

static void end_solo(lease *l)
{
    free(l->untried);
    l->untried = NULL;
    l->n_untried = 0;
    l->solo = false;
    l->solo_deaths = 0;
    l->losses = 0;
    l->suspect = -1;
}

/* Chooses the items to try alone: the suspect only; or every item once, the suspect first, if there
 * is no suspect or an earlier round found it harmless. Without memory the lease simply stays whole.
 */
static void begin_solo(lease *l)
{
    int64_t *order = calloc((size_t)l->n_items + 1, sizeof(*order));
    if (!order || l->n_items == 0) {
        free(order);
        l->losses = 0;
        return;
    }
    int64_t n = 0;
    if (lease_has(l, l->suspect))
        order[n++] = l->suspect;
    const bool all = n == 0 || l->rounds > 0;
    for (int64_t i = 0; all && i < l->n_items; i++) {
        bool seen = false;
        for (int64_t k = 0; k < n && !seen; k++)
            seen = order[k] == l->item[i];
        if (!seen)
            order[n++] = l->item[i];
    }
    end_solo(l);
    l->rounds++;
    l->solo = true;
    l->untried = order;
    l->n_untried = n;
}

static bool is_own_doing(loss how)
{
    return how == LOSS_CRASH || how == LOSS_TIMEOUT;
}

lease_verdict lease_lost(lease_book *b, lease *l, loss how, int64_t *out_item)
{
    lease_verdict verdict = LEASE_AGAIN;
    if (is_own_doing(how) && l->solo) {
        if (++l->solo_deaths >= b->solo_limit) {
            *out_item = l->untried[0];
            verdict = LEASE_POISON;
            end_solo(l);
        }
    } else if (is_own_doing(how)) {
        if (++l->losses >= LEASE_MAX_LOSSES)
            begin_solo(l);
    }
    push_front(b, l);
    return verdict;
}

void lease_solo_done(lease_book *b, lease *l)
{
    if (l->n_untried > 0) {
        l->n_untried--;
        memmove(l->untried, l->untried + 1, (size_t)l->n_untried * sizeof(*l->untried));
        l->solo_deaths = 0;
    }
    if (l->n_untried == 0)
        end_solo(l); /* no item was to blame; a crash by itself never condemns a sample */
    push_front(b, l);
}

void lease_drop_item(lease *l, int64_t item)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l->n_items; i++) {
        if (l->item[i] == item)
            continue;
        for (int c = 0; c < l->n_claims; c++)
            l->claim[c].facts[n] = l->claim[c].facts[i];
        l->item[n++] = l->item[i];
    }
    l->n_items = n;
}

status lease_add_claim(lease *l, uint64_t by, const uint64_t *facts)
{
    uint64_t *copy = NULL;
    if (l->n_claims < LEASE_MAX_CLAIMS)
        copy = calloc((size_t)l->n_items + 1, sizeof(*copy));
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for a claim of %lld records", (long long)l->n_items);
    memcpy(copy, facts, (size_t)l->n_items * sizeof(*copy));
    l->claim[l->n_claims++] = (lease_claim){by, copy};
    return ST_OK;
}
