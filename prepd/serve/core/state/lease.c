/* SPDX-License-Identifier: Apache-2.0 */
/* lease.c: the book of lost leases, and the trial of a lease's items one by one (lease.h). */
#include "prepd/serve/core/state/lease.h"

#include <stdlib.h>
#include <string.h>

/* --- doubts --- */

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

/* --- leases --- */

void lease_book_init(lease_book *book, int solo_limit)
{
    *book = (lease_book){.next_number = 1, .solo_limit = solo_limit};
}

status lease_new(lease_book *book, lease_kind kind, void *owner, uint64_t row, const int64_t *item,
                 int64_t n_items, lease **out)
{
    lease *leased = calloc(1, sizeof(*leased));
    int64_t *items = calloc((size_t)n_items + 1, sizeof(*items));
    if (!leased || !items) {
        free(leased);
        free(items);
        return FAIL(ST_NO_MEMORY, "no memory for a lease of %lld items", (long long)n_items);
    }
    if (n_items > 0)
        memcpy(items, item, (size_t)n_items * sizeof(*items));
    *leased = (lease){.kind = kind,
                      .number = book->next_number++,
                      .owner = owner,
                      .row = row,
                      .n_items = n_items,
                      .item = items,
                      .suspect = LEASE_NO_ITEM};
    *out = leased;
    return ST_OK;
}

void lease_drop_failure(lease *leased)
{
    failure *told = leased->failures;
    leased->failures = told->next;
    free(told->cause);
    free(told);
}

void lease_free(lease **leased)
{
    if (!*leased)
        return;
    free((*leased)->item);
    free((*leased)->branches);
    free((*leased)->untried);
    free((*leased)->tag);
    while ((*leased)->failures)
        lease_drop_failure(*leased);
    doubt_free(&(*leased)->doubt);
    free(*leased);
    *leased = NULL;
}

static void push_front(lease_book *book, lease *leased)
{
    leased->next = book->lost;
    book->lost = leased;
}

void lease_unbegun(lease_book *book, lease *leased)
{
    push_front(book, leased);
}

void lease_book_return(lease_book *book, lease *leased)
{
    lease **at = &book->lost;
    while (*at)
        at = &(*at)->next;
    leased->next = NULL;
    *at = leased;
}

bool lease_needs_decider(const lease *leased)
{
    return leased->kind != LEASE_ROW || leased->solo || leased->decide || leased->doubt;
}

/* Whether only a worker that has done nothing yet may do the lease. */
static bool needs_fresh(const lease *leased)
{
    return leased->solo && !leased->asking;
}

static lease *take_first(lease_book *book, bool solo, lease_filter may, const void *user)
{
    for (lease **at = &book->lost; *at; at = &(*at)->next) {
        lease *leased = *at;
        if (needs_fresh(leased) != solo || !may(user, leased))
            continue;
        *at = leased->next;
        leased->next = NULL;
        leased->reached = 0; /* the worker that gets it begins anew */
        return leased;
    }
    return NULL;
}

lease *lease_book_take_if(lease_book *book, bool fresh, lease_filter may, const void *user)
{
    lease *leased = fresh ? take_first(book, true, may, user) : NULL;
    return leased ? leased : take_first(book, false, may, user);
}

bool lease_book_has(const lease_book *book, bool fresh, lease_filter may, const void *user)
{
    for (const lease *leased = book->lost; leased; leased = leased->next)
        if ((fresh || !needs_fresh(leased)) && may(user, leased))
            return true;
    return false;
}

bool lease_book_wants_fresh(const lease_book *book, lease_filter may, const void *user)
{
    for (const lease *leased = book->lost; leased; leased = leased->next)
        if (needs_fresh(leased) && may(user, leased))
            return true;
    return false;
}

void lease_book_remove(lease_book *book, lease *leased)
{
    lease **at = &book->lost;
    while (*at != leased)
        at = &(*at)->next;
    *at = leased->next;
    leased->next = NULL;
}

void lease_book_forget(lease_book *book, const void *owner)
{
    lease **at = &book->lost;
    while (*at) {
        lease *leased = *at;
        if (leased->owner != owner) {
            at = &leased->next;
            continue;
        }
        *at = leased->next;
        lease_free(&leased);
    }
}

int64_t lease_book_waiting(const lease_book *book)
{
    int64_t count = 0;
    for (const lease *leased = book->lost; leased; leased = leased->next)
        count++;
    return count;
}

status lease_set_branches(lease *leased, int64_t at, int64_t branches)
{
    if (!leased->branches)
        leased->branches = calloc((size_t)leased->n_items + 1, sizeof(*leased->branches));
    if (!leased->branches)
        return FAIL(ST_NO_MEMORY, "no memory for a lease of %lld items",
                    (long long)leased->n_items);
    leased->branches[at] = branches;
    return ST_OK;
}

bool lease_next_hit(const lease *leased, int64_t item, int64_t *inout_place, int64_t *out_sample)
{
    int64_t at = 0;
    const int64_t place = (*inout_place)++;
    while (item < 0 && at < leased->n_items && leased->item[at] != item)
        at++;
    const bool is_prefix = item < 0 && at < leased->n_items && leased->branches;
    if (place >= (is_prefix ? leased->branches[at] : 1))
        return false;
    *out_sample = is_prefix ? leased->item[at + 1 + place] : lease_sample(item);
    return true;
}

int64_t lease_solo_item(const lease *leased)
{
    return leased->solo && leased->n_untried > 0 ? leased->untried[0] : LEASE_NO_ITEM;
}

bool lease_has(const lease *leased, int64_t item)
{
    for (int64_t k = 0; k < leased->n_items; k++)
        if (leased->item[k] == item)
            return true;
    return false;
}

bool lease_on(lease *leased, int64_t item)
{
    leased->suspect = item;
    for (int64_t k = leased->reached; k < leased->n_items; k++)
        if (leased->item[k] == item) {
            leased->reached = k + 1;
            return true;
        }
    return false;
}

static void end_solo(lease *leased)
{
    free(leased->untried);
    leased->untried = NULL;
    leased->n_untried = 0;
    leased->solo = leased->asking = false;
    leased->solo_deaths = 0;
    leased->losses = 0;
    leased->suspect = LEASE_NO_ITEM;
}

/* Chooses the items to try alone: the suspect only; or every item once, the suspect first, if there
 * is no suspect or an earlier round found it harmless. Without memory the lease simply stays whole.
 */
static void begin_solo(lease *leased)
{
    int64_t *order = calloc((size_t)leased->n_items + 1, sizeof(*order));
    if (!order || leased->n_items == 0) {
        free(order);
        leased->losses = 0;
        return;
    }
    int64_t count = 0;
    if (lease_has(leased, leased->suspect))
        order[count++] = leased->suspect;
    const bool all = count == 0 || leased->rounds > 0;
    for (int64_t i = 0; all && i < leased->n_items; i++) {
        bool seen = false;
        for (int64_t k = 0; k < count && !seen; k++)
            seen = order[k] == leased->item[i];
        if (!seen)
            order[count++] = leased->item[i];
    }
    end_solo(leased);
    leased->rounds++;
    leased->solo = true;
    leased->untried = order;
    leased->n_untried = count;
}

void lease_try_first(lease *leased, int64_t item)
{
    int64_t count = 1;
    for (int64_t i = 0; i < leased->n_untried; i++) /* `untried` has room for all items */
        count += leased->untried[i] != item;
    for (int64_t i = leased->n_untried - 1, to = count - 1; i >= 0; i--)
        if (leased->untried[i] != item)
            leased->untried[to--] = leased->untried[i];
    leased->untried[0] = item;
    leased->n_untried = count;
    leased->solo_deaths = 0;
}

void lease_try_alone(lease *leased, int64_t item)
{
    int64_t *order = calloc(1, sizeof(*order));
    if (!order)
        return; /* without memory the lease simply stays whole */
    end_solo(leased);
    *order = item;
    leased->solo = leased->asking = true;
    leased->untried = order;
    leased->n_untried = 1;
}

void lease_try_once_more(const lease_book *book, lease *leased, int64_t item)
{
    lease_try_alone(leased, item);
    leased->asking = false;
    leased->solo_deaths = leased->solo ? book->solo_limit - 1 : 0;
}

void lease_end_alone(lease *leased)
{
    end_solo(leased);
}

static bool is_own_doing(loss how)
{
    return how == LOSS_CRASH || how == LOSS_TIMEOUT;
}

lease_verdict lease_lost(lease_book *book, lease *leased, loss how, int64_t *out_item)
{
    lease_verdict verdict = LEASE_AGAIN;
    if (is_own_doing(how) && leased->asking) {
        leased->asking = false; /* it was not fresh, so it may have died of what it did before */
    } else if (is_own_doing(how) && leased->solo) {
        if (++leased->solo_deaths >= book->solo_limit) {
            *out_item = leased->untried[0];
            verdict = LEASE_POISON;
            end_solo(leased);
        }
    } else if (is_own_doing(how)) {
        if (++leased->losses >= LEASE_MAX_LOSSES)
            begin_solo(leased);
    }
    push_front(book, leased);
    return verdict;
}

void lease_struck(lease_book *book, lease *leased)
{
    if (++leased->strikes >= LEASE_MAX_STRIKES)
        leased->decide = true;
    push_front(book, leased);
}

void lease_solo_done(lease_book *book, lease *leased)
{
    if (leased->n_untried > 0) {
        leased->n_untried--;
        memmove(leased->untried, leased->untried + 1,
                (size_t)leased->n_untried * sizeof(*leased->untried));
        leased->solo_deaths = 0;
    }
    if (leased->n_untried == 0)
        end_solo(leased); /* no item was to blame; a crash by itself never condemns a sample */
    push_front(book, leased);
}

void lease_drop_item(lease *leased, int64_t item)
{
    int64_t count = 0;
    for (int64_t i = 0; i < leased->n_items; i++)
        if (leased->item[i] != item)
            leased->item[count++] = leased->item[i];
    leased->n_items = count;
}
