/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.c: a table of the peers' keys, or addresses, and what holds against each. */
#include "prepd/serve/core/state/accounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ACCOUNT_ID >= (int)WIRE_KEY_TEXT && (int)ACCOUNT_NAME >= (int)WIRE_HOST_TEXT,
               "an account is of a key or of an address");

enum { FREE_BREACHES = 3, MAX_DOUBLED = 6, MAX_BREACHES_DOUBLED = 12, FIRST_WATCH = 16 };
static const int64_t SECOND_NS = 1000000000, MINUTE_NS = 60 * INT64_C(1000000000);
static const int64_t LONGEST_NS = 64 * 60 * INT64_C(1000000000);
static const int64_t JOIN_NS = 10000000, JOINS_AT_ONCE = 1024;
static const int64_t MAX_WINDOW = 1 << 20;

static const char *id_of(const wire_peer *peer, const char *host)
{
    return peer->key[0] ? peer->key : host[0] ? host : "ipc";
}

static account *find_account(const accounts *list, const char *id)
{
    for (int i = 0; i < list->used; i++)
        if (strcmp(list->of[i]->id, id) == 0)
            return list->of[i];
    return NULL;
}

/* Whether nothing would be lost with it. */
static bool is_blank(const account *held, int64_t now_ns)
{
    return held->uses == 0 && held->watched == 0 && now_ns - held->excluded.until_ns > LONGEST_NS &&
           now_ns - held->breached_ns > LONGEST_NS &&
           now_ns - held->suspected.until_ns > LONGEST_NS &&
           now_ns - held->refused.until_ns > LONGEST_NS;
}

static status place_for(accounts *list, int64_t now_ns, account **out)
{
    *out = NULL;
    if (list->used < MAX_ACCOUNTS) {
        account *held = (account *)calloc(1, sizeof *held);
        if (!held)
            return FAIL(ST_NO_MEMORY, "no memory to remember a peer");
        *out = list->of[list->used++] = held;
        return ST_OK;
    }
    for (int i = 0; i < list->used && !*out; i++)
        if (is_blank(list->of[i], now_ns))
            *out = list->of[i];
    return ST_OK;
}

status account_open(accounts *list, const wire_peer *peer, const char *host, int64_t now_ns,
                    account **out)
{
    const char *id = id_of(peer, host);
    account *held = find_account(list, id);
    if (!held) {
        TRY(place_for(list, now_ns, &held));
        if (!held) {
            *out = list->of[MAX_ACCOUNTS - 1];
            return ST_OK;
        }
        *held = (account){.number = ++list->last, .window = 1};
        held->excluded.until_ns = held->suspected.until_ns = held->refused.until_ns = INT64_MIN / 2;
        held->breached_ns = INT64_MIN / 2;
        snprintf(held->id, sizeof held->id, "%s", id);
        snprintf(held->name, sizeof held->name, "%s", peer->key[0] ? peer->key_name : id);
    }
    *out = held;
    return ST_OK;
}

account *account_of(const accounts *list, uint64_t number)
{
    for (int i = 0; number && i < list->used; i++)
        if (list->of[i]->number == number)
            return list->of[i];
    return NULL;
}

void accounts_free(accounts *list)
{
    for (int i = 0; i < list->used; i++)
        free(list->of[i]);
    *list = (accounts){0};
}

void penalty_set(penalty *held, int64_t done_ns, int64_t now_ns)
{
    if (penalty_holds(held, now_ns) || (held->times > 0 && done_ns <= held->set_ns))
        return;
    held->set_ns = now_ns;
    held->until_ns =
        now_ns + (MINUTE_NS << (held->times < MAX_DOUBLED ? held->times : MAX_DOUBLED));
    held->times++;
}

bool penalty_holds(const penalty *held, int64_t now_ns)
{
    return now_ns < held->until_ns;
}

bool account_is_excluded(const account *held, int64_t now_ns)
{
    return penalty_holds(&held->excluded, now_ns);
}

bool account_exclude(account *held, const char *why, int64_t now_ns)
{
    if (now_ns < held->word_until_ns)
        return false;
    held->contradicted_ns = now_ns;
    penalty until = held->excluded;
    until.until_ns = INT64_MIN / 2; /* what it waits for now may be a second for a breach */
    penalty_set(&until, now_ns, now_ns);
    held->word_until_ns = until.until_ns;
    held->excluded.times = until.times;
    if (until.until_ns > held->excluded.until_ns)
        held->excluded.until_ns = until.until_ns;
    snprintf(held->why, sizeof held->why, "%s", why);
    return true;
}

bool account_breach(account *held, const char *why, int64_t now_ns)
{
    if (now_ns - held->breached_ns > LONGEST_NS)
        held->breaches = 0;
    held->breached_ns = now_ns;
    if (account_is_excluded(held, now_ns) || ++held->breaches <= FREE_BREACHES)
        return false; /* several workers of it may do the same before they hear */
    const int over = held->breaches - FREE_BREACHES - 1;
    int64_t wait = SECOND_NS << (over < MAX_BREACHES_DOUBLED ? over : MAX_BREACHES_DOUBLED);
    held->excluded.until_ns = now_ns + (wait < LONGEST_NS ? wait : LONGEST_NS);
    snprintf(held->why, sizeof held->why, "%s", why);
    return true;
}

static void watch_rows(account *held, int64_t rows)
{
    if (held->watched < rows)
        held->watched = rows;
}

void account_watch(account *held)
{
    watch_rows(held, (int64_t)FIRST_WATCH << held->watches);
    if (held->watches < MAX_DOUBLED)
        held->watches++;
}

void account_take_build(account *held, const char *build)
{
    enum { BUILD_WATCH = 200 };
    if (strcmp(held->build, build) == 0)
        return;
    snprintf(held->build, sizeof held->build, "%s", build);
    watch_rows(held, BUILD_WATCH);
}

bool account_may_join(account *held, int64_t now_ns)
{
    if (held->joins_ns < now_ns)
        held->joins_ns = now_ns;
    if (held->seats >= ACCOUNT_SEATS || held->joins_ns - now_ns >= JOINS_AT_ONCE * JOIN_NS)
        return false;
    held->joins_ns += JOIN_NS;
    return true;
}

bool account_may_have(const account *held)
{
    return held->leases < held->window;
}

void account_answered(account *held)
{
    if (held->window < MAX_WINDOW)
        held->window *= 2;
}

void account_lost(account *held)
{
    held->window = 1;
}

static const char *what_holds(const account *held, int64_t now_ns)
{
    return account_is_excluded(held, now_ns)         ? "excluded"
           : penalty_holds(&held->refused, now_ns)   ? "turned away"
           : penalty_holds(&held->suspected, now_ns) ? "suspected"
           : held->watched > 0                       ? "watched"
                                                     : "";
}

int accounts_admit(accounts *list, const char *name, int64_t now_ns, const char **out_was)
{
    int count = 0;
    *out_was = "";
    for (int i = 0; i < list->used; i++) {
        account *held = list->of[i];
        if (strcmp(held->name, name) != 0)
            continue;
        if (!(*out_was)[0])
            *out_was = what_holds(held, now_ns);
        held->excluded = held->suspected = held->refused = (penalty){.until_ns = INT64_MIN / 2};
        held->breaches = 0;
        held->word_until_ns = held->contradicted_ns = 0;
        held->watched = held->watches = 0;
        count++;
    }
    return count;
}
