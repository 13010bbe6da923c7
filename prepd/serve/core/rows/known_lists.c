/* SPDX-License-Identifier: Apache-2.0 */
/* known_lists.c: the bad samples that consumers know of. A HELLO brings them; they are blank in the
 * rows of consumers of the same key and run, never in those of others, and never become this
 * daemon's own. So nobody can make a sample blank for somebody else.
 *
 * The ranks of a run bring almost the same long list, so they share one. It grows by what each of
 * them brings, and is forgotten when the last of them has left. */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"

enum { TOLD_SHARE = 8 }; /* HELLOs and lists may take this share of prepd.buffer_bytes */

const char *blank_cause(const consumer_seat *consumer, int64_t id)
{
    static const char BROUGHT[] = "the run knew it to be bad";
    const char *cause = bad_samples_find(&consumer->src->bad, id);
    if (cause || !consumer->known)
        return cause;
    return bad_samples_find(&consumer->known->bad, id) ? BROUGHT : NULL;
}

int64_t known_count(const consumer_seat *consumer)
{
    const bad_samples *own = &consumer->src->bad;
    return consumer->known
               ? consumer->known->bad.n + bad_samples_count_new(&consumer->known->bad, own)
               : own->n;
}

int64_t known_most(const dispatch *state, const source *section)
{
    int64_t most = 0;
    for (const known_list *list = state->known; list; list = list->next)
        if (list->src == section && list->bad.n > most)
            most = list->bad.n;
    return most + section->bad.n;
}

static int64_t list_bytes(int64_t count)
{
    return count * (int64_t)sizeof(int64_t);
}

status known_may_keep(const dispatch *state, int64_t bytes, const char *name)
{
    const int64_t most = state->options->prepd_buffer_bytes / TOLD_SHARE;
    int64_t kept = 0;
    for (const known_list *list = state->known; list; list = list->next)
        kept += list_bytes(list->bad.n);
    for (const consumer_seat *other = state->consumer_seats; other; other = other->next)
        kept += other->cursor_bytes;
    if (kept == 0 || bytes == 0 || kept + bytes <= most)
        return ST_OK;
    return FAIL_IN(ST_UNAVAILABLE, name,
                   "the HELLOs and quarantines of all consumers would take more than %lld bytes "
                   "(1/%d of prepd.buffer_bytes)",
                   (long long)most, TOLD_SHARE);
}

/* Whether the consumer, who brings these samples, may share the list. One that names neither key
 * nor run is like no other, and shares only what is the same. */
static bool is_for(const known_list *list, const consumer_seat *consumer,
                   const bad_samples *brought)
{
    const bool named = consumer->run[0] || consumer->peer.key[0];
    return strcmp(list->key, consumer->peer.key) == 0 && strcmp(list->run, consumer->run) == 0 &&
           strcmp(list->stream, consumer->stream) == 0 &&
           strcmp(list->bad.index, brought->index) == 0 &&
           (named ||
            (list->bad.n == brought->n &&
             memcmp(list->bad.id, brought->id, (size_t)brought->n * sizeof(int64_t)) == 0));
}

static known_list *find_list(const dispatch *state, const consumer_seat *consumer,
                             const bad_samples *brought)
{
    known_list *list = state->known;
    while (list && !is_for(list, consumer, brought))
        list = list->next;
    return list;
}

static status make_list(dispatch *state, consumer_seat *consumer, known_list **out)
{
    known_list *list = (known_list *)calloc(1, sizeof(*list));
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a quarantine");
    memcpy(list->key, consumer->peer.key, sizeof(list->key));
    memcpy(list->run, consumer->run, sizeof(list->run));
    memcpy(list->stream, consumer->stream, sizeof(list->stream));
    list->src = consumer->src;
    list->next = state->known;
    state->known = *out = list;
    return ST_OK;
}

void known_warn(dispatch *state, const source *section, bool *inout_warned)
{
    if (*inout_warned || known_most(state, section) < BAD_SAMPLES_WARN)
        return;
    *inout_warned = true;
    core_warn(state,
              "the quarantine is nearly full section=%s bad=%lld most=%d: " BAD_SAMPLES_MEND
              ", or the run cannot be resumed",
              section->name, (long long)known_most(state, section), BAD_SAMPLES_MOST);
}

/* Gives the consumer the list that it shares, which has then all that it brought. */
static status share_list(dispatch *state, consumer_seat *consumer, const bad_samples *brought,
                         const char *name)
{
    known_list *list = find_list(state, consumer, brought);
    const int64_t more = list ? bad_samples_count_new(&list->bad, brought) : brought->n;
    TRY(known_may_keep(state, list_bytes(more), name));
    if (!list)
        TRY(make_list(state, consumer, &list));
    list->users++;
    consumer->known = list;
    consumer->last_known = brought->id[brought->n - 1];
    if (more > 0)
        TRY(bad_samples_merge(&list->bad, brought));
    known_warn(state, consumer->src, &list->warned);
    return ST_OK;
}

status known_take(dispatch *state, consumer_seat *consumer, const json_value *said,
                  const json_value *cursor, const char *name)
{
    bad_samples brought = {0};
    status st = bad_samples_read(&brought, json_given(said, "quarantine"), name);
    if (st == ST_OK)
        st = bad_samples_read_cursor(&brought, cursor, name);
    if (st == ST_OK && brought.n > 0)
        st = share_list(state, consumer, &brought, name);
    bad_samples_done(&brought);
    return st == ST_BAD_INPUT ? FAIL_IN(ST_PROTOCOL, name, "%s", status_last()->message) : st;
}

status known_check(const consumer_seat *consumer, const char *name)
{
    const int64_t samples = index_samples(consumer->src->index);
    char ours[HASH_TEXT];
    if (!consumer->known)
        return ST_OK;
    hash_print(index_digest(consumer->src->index), ours);
    if (consumer->known->bad.index[0] && strcmp(consumer->known->bad.index, ours) != 0)
        return FAIL_IN(ST_CONFIG, name,
                       "the quarantine of %lld samples belongs to index %s, but the data set here "
                       "has index %s: files or options have changed since. Restore them, or "
                       "resume without the list, or raise data.generation: the run keeps its "
                       "weights and reads the changed data from their first row",
                       (long long)consumer->known->bad.n, consumer->known->bad.index, ours);
    return consumer->last_known < samples
               ? ST_OK
               : FAIL_IN(ST_PROTOCOL, name,
                         "the bad sample %lld is outside the %lld samples of the data set",
                         (long long)consumer->last_known, (long long)samples);
}

void known_leave(consumer_seat *consumer)
{
    known_list *list = consumer->known;
    consumer->known = NULL;
    if (!list || --list->users > 0)
        return;
    known_list **at = &consumer->src->of->known;
    while (*at != list)
        at = &(*at)->next;
    *at = list->next;
    bad_samples_done(&list->bad);
    free(list);
}
