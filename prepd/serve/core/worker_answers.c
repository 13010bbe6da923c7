/* worker_answers.c: what a worker sends for its lease: the row, index records, or the samples that
 * could not be decoded; and ON, by which it tells in between how far it is.
 *
 * A remote worker is not believed about files. If it says that a file is missing, the dispatcher
 * looks at its own copy: a file that is there means that the worker's copy is incomplete, and after
 * a few of these it is dismissed. Nothing but the files of the lease is opened for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/dispatch_state.h"

/* How many files a worker may miss that the dispatcher has, before it is dismissed. */
enum { MISSING_LIMIT = 3 };

/* The worker has answered for its lease: takes it from the seat and moves on to the next. */
static lease *end_work(dispatch *state, worker_seat *worker)
{
    lease *leased = worker->work;
    worker->work = worker->ahead;
    worker->ahead = NULL;
    worker->unbegun = worker->work != NULL;
    worker->last_item = false;
    worker->made_ns = 0;
    worker->shipped = 0;
    worker->fresh = false;
    worker->leases_done++;
    worker->since_ns = worker->leased_ns = state->now_ns;
    state->answered_ns = worker->since_ns;
    return leased;
}

/* The worker has made the one sample that it was to try alone, without harm. */
static void tried_alone(dispatch *state, lease *leased, const worker_seat *worker)
{
    failure_denied(leased, worker);
    lease_solo_done(&state->book, leased);
    failures_settle(state, leased);
}

status answer_row(dispatch *state, worker_seat *worker, const frame *head, wire_msg *message,
                  const char *name)
{
    if (!worker->work)
        return ST_OK; /* late */
    if (worker->work->kind != LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker answered a lease of index records with a row");
    if (head->row != worker->work->row)
        return FAIL_IN(ST_PROTOCOL, name, "the worker sent row %llu for a lease of row %llu",
                       (unsigned long long)head->row, (unsigned long long)worker->work->row);
    if (wire_msg_parts(message) != 2 + (size_t)head->n_images)
        return FAIL_IN(ST_PROTOCOL, name, "the row has %zu parts, but its header says %u images",
                       wire_msg_parts(message), (unsigned)head->n_images);
    if (worker->made_ns > 0) /* the rest of the time since the lease was spent on the link */
        compression_link_saw(&worker->link, (int64_t)wire_msg_bytes(message),
                             state->now_ns - worker->leased_ns - worker->made_ns);
    if (!worker->local)
        breach_made_good(&state->breaches, worker->from);
    lease *leased = end_work(state, worker);
    if (!leased->owner)
        lease_free(&leased); /* its consumer has left */
    else if (lease_solo_item(leased) != LEASE_NO_ITEM)
        tried_alone(state, leased, worker);
    else if (audit_made(state, leased, worker, message) != ST_OK)
        dispatch_fail(state, status_last()->code);
    return ST_OK;
}

static void stat_image(const source *section, int64_t image, int64_t *bytes, int64_t *mtime_ns)
{
    section->of->outside.stat_image(section->of->outside.shell, section, image, bytes, mtime_ns);
}

static sight look_at(const source *section, const char *file, int64_t *out_size)
{
    const outside *world = &section->of->outside;
    return world->look_at(world->shell, section, file, out_size);
}

/* Looks at a file of an indexed sample, where a file that has changed since counts as gone. A
 * peer names the file, so it is only opened if it belongs to the sample that was leased. */
static sight look_at_indexed(dispatch *state, const source *section, int64_t id, const char *file)
{
    sample smp;
    int32_t i = 0;
    arena_reset(&state->scratch);
    if (section->data->adapter->outline(section->data, id, &state->scratch, &smp) != ST_OK)
        return SIGHT_GONE;
    while (i < smp.n_images && !dataset_image_has(section->data, smp.images[i], file))
        i++;
    if (i == smp.n_images)
        return SIGHT_GONE;
    int64_t size, bytes, mtime_ns;
    const sight seen = look_at(section, file, &size);
    if (seen != SIGHT_THERE)
        return seen;
    image_place place;
    index_image image;
    dataset_image_place(section->data, smp.images[i], &place);
    stat_image(section, smp.images[i], &bytes, &mtime_ns);
    index_image_get(section->index, smp.images[i], &image);
    if (bytes < 0)
        return SIGHT_TROUBLE;
    const bool same =
        place.bytes < 0 ? bytes == image.file_bytes : place.offset <= size - place.bytes;
    return same ? SIGHT_THERE : SIGHT_GONE;
}

/* Neither the worker nor the dispatcher can read the file now. The sample is judged as if the
 * worker had died of it, and the worker starts anew. */
static void lost_in_trouble(dispatch *state, worker_seat *worker, const char *file)
{
    static const char json[] = "{\"again\":true}";
    char what[128];
    snprintf(what, sizeof(what), "%.80s can be read neither there nor here", file);
    if (outside_send_json(&state->outside, DOOR_WORKERS, &worker->peer, KIND_BYE, 0, json,
                          strlen(json)) != ST_OK)
        outside_debug(&state->outside, "worker could not be told to start anew: %s", status_text());
    seat_gone(state, worker, LOSS_CRASH, what);
}

/* Dismisses a worker that has missed too many files. `file` is one that it could not open just now,
 * or NULL. The reason is sent to the worker, so that its user reads it where the worker runs. */
static void dismiss_if_blind(dispatch *state, worker_seat *worker, const char *file)
{
    if (!file || worker->missing_files < MISSING_LIMIT)
        return;
    const status st =
        worker->ship
            ? FAIL_IN(ST_PROTOCOL, file,
                      "a remote worker (pid %d on %s) tells sizes for this and %lld other files "
                      "that differ from what the daemon sent it",
                      (int)worker->pid, worker->host, (long long)worker->missing_files - 1)
            : FAIL_IN(ST_NO_INPUT, file,
                      "this and %lld other files that the daemon has cannot be opened by a remote "
                      "worker (pid %d on %s), or differ there: its --data-root must name the "
                      "folder of a complete copy",
                      (long long)worker->missing_files - 1, (int)worker->pid, worker->host);
    seat_tell_dismissal(state, worker, st);
    if (worker->ship) /* then it cannot be a bad copy */
        breach_note(&state->breaches, worker->from, state->now_ns);
    seat_gone(state, worker, worker->ship ? LOSS_BREACH : LOSS_OUTSIDE, "dismissed");
}

/* What the dispatcher sees of image `index` where a worker could not open its file `missing` (NULL:
 * it could), or told the size `told` (-1: none, which index_build_take refuses). THERE contradicts
 * the worker. With data.ship a file that could not be sent is the daemon's problem, and its size is
 * not told. */
static sight look_at_told(const worker_seat *worker, const source *section, int64_t index,
                          const char *missing, int64_t told)
{
    int64_t bytes, mtime_ns;
    if (missing && !worker->ship)
        return dataset_image_has(section->data, index, missing) ? look_at(section, missing, &bytes)
                                                                : SIGHT_GONE;
    stat_image(section, index, &bytes, &mtime_ns);
    return told >= (worker->ship ? 1 : 0) && bytes > 0 && bytes != told ? SIGHT_THERE : SIGHT_GONE;
}

/* Counts the files of an index lease that a remote worker could not open and the dispatcher can, or
 * that have another size here than the worker says: the index must not depend on who read for it. A
 * file that changed after it was sent counts too, but it takes MISSING_LIMIT of them to dismiss the
 * worker. *out_trouble: a file that it could not open, and that cannot be read here now; or NULL.
 */
static int64_t missed_files(const worker_seat *worker, const lease *leased, const json_value *said,
                            const char **out_file, const char **out_trouble)
{
    const json_value *list = json_find(said, "records");
    const int64_t solo = lease_solo_item(leased),
                  count = solo != LEASE_NO_ITEM ? 1 : leased->n_items;
    const source *section = leased->owner;
    int64_t missed = 0;
    *out_file = *out_trouble = NULL;
    if (worker->local || leased->kind != LEASE_IMAGES)
        return 0;
    for (int64_t k = 0; k < count; k++) {
        const json_value *result = json_item(list, (size_t)k);
        const int64_t j = solo != LEASE_NO_ITEM ? solo : leased->item[k];
        const char *missing = json_text(json_find(result, "missing"), NULL);
        const sight seen =
            look_at_told(worker, section, j, missing, json_int(json_find(result, "bytes"), -1));
        *out_trouble = seen == SIGHT_TROUBLE ? missing : *out_trouble;
        if (seen != SIGHT_THERE)
            continue;
        missed++;
        *out_file = missing ? missing : section->data->adapter->image_path(section->data, j);
    }
    return missed;
}

status answer_records(dispatch *state, worker_seat *worker, const frame *head,
                      const json_value *said, const char *name)
{
    lease *leased = worker->work;
    if (!leased || head->row != leased->number)
        return ST_OK; /* late */
    if (leased->kind == LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker answered a lease of a row with index records");
    bool solo = lease_solo_item(leased) != LEASE_NO_ITEM;
    const char *file, *trouble;
    const int64_t missed = missed_files(worker, leased, said, &file, &trouble);
    if (trouble) {
        lost_in_trouble(state, worker, trouble);
        return ST_OK;
    }
    if (missed > 0) {
        worker->missing_files += missed;
        end_work(state, worker);
        lease_book_return(&state->book, leased);
        dismiss_if_blind(state, worker, file);
        return ST_OK;
    }
    const status st = index_build_take(state, leased, said, worker, name);
    if (st != ST_OK && st != ST_PROTOCOL) { /* the daemon's own failure, not the worker's */
        dispatch_fail(state, st);
        return ST_OK;
    }
    TRY(st);
    end_work(state, worker);
    if (solo && leased->n_items > 0) {
        lease_solo_done(&state->book, leased);
        index_build_order_trials(leased);
    } else {
        lease_free(&leased);
    }
    return ST_OK;
}

/* Checks all of a FAILED message before any of it counts. A worker that names a sample that it was
 * not given is not believed in anything, not even in that it is done with its lease: one that still
 * is at it may die of it, and that must not count against its next one. */
static status check_failed(const lease *leased, const json_value *said, const char *name,
                           const json_value **out_list)
{
    const int64_t solo = lease_solo_item(leased);
    TRY(json_want_array(said, "samples", name, out_list));
    if (json_count(*out_list) == 0)
        return FAIL_IN(ST_PROTOCOL, name, "the worker reported a failure without naming a sample");
    for (size_t i = 0; i < json_count(*out_list); i++) {
        const json_value *value = json_item(*out_list, i);
        int64_t id;
        const char *cause;
        TRY(json_want_int(value, "id", name, &id));
        TRY(json_want_text(value, "cause", name, &cause));
        if (solo != LEASE_NO_ITEM ? id != lease_sample(solo) : !lease_has(leased, id))
            return FAIL_IN(
                ST_PROTOCOL, name,
                "the worker reported a failure of sample %lld, which is not in its lease",
                (long long)id);
    }
    return ST_OK;
}

/* Handles FAILED: samples that the worker could not decode, of a prefix all branches
 * (sample_failures.c). A file that only this worker misses is the worker's fault. */
status answer_failed(dispatch *state, worker_seat *worker, const frame *head,
                     const json_value *said, const char *name)
{
    lease *leased = worker->work;
    const json_value *list;
    const char *trouble = NULL, *missed = NULL; /* files */
    int64_t solo, item;
    if (!leased || head->row != leased->number)
        return ST_OK; /* late */
    if (leased->kind != LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker answered a lease of index records with failed samples");
    TRY(check_failed(leased, said, name, &list));
    if (!leased->owner) { /* its consumer has left */
        end_work(state, worker);
        lease_free(&leased);
        return ST_OK;
    }
    solo = lease_solo_item(leased);
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *value = json_item(list, i);
        item = json_int(json_find(value, "id"), LEASE_NO_ITEM);
        item = solo != LEASE_NO_ITEM ? solo : item;
        const char *missing = json_text(json_find(value, "missing"), NULL);
        const sight seen =
            missing && !worker->local && !worker->ship
                ? look_at_indexed(state, lease_source(leased), lease_sample(item), missing)
                : SIGHT_GONE;
        worker->missing_files += seen == SIGHT_THERE;
        missed = seen == SIGHT_THERE ? missing : missed;
        trouble = seen == SIGHT_TROUBLE ? missing : trouble;
        if (seen == SIGHT_GONE &&
            failure_told(leased, item, json_text(json_find(value, "cause"), ""), worker) != ST_OK)
            dispatch_fail(state, ST_NO_MEMORY);
    }
    if (trouble) {
        lost_in_trouble(state, worker, trouble);
        return ST_OK;
    }
    end_work(state, worker);
    if (missed) {
        failure_missed(leased, worker);
        audit_missed(leased, worker);
    }
    if (solo != LEASE_NO_ITEM && !missed)
        lease_solo_done(&state->book, leased);
    else /* a worker that could not open the file has not tried the item */
        lease_book_return(&state->book, leased);
    dismiss_if_blind(state, worker, missed);
    failures_settle(state, leased);
    return ST_OK;
}

/* Adds up where the time of making a row went, which its worker tells before the row itself. */
static void count_stages(dispatch *state, worker_seat *worker, const json_value *stages,
                         const json_value *cache)
{
    for (int i = 0; i < 2; i++) {
        const int64_t count = json_int(json_item(cache, (size_t)i), 0);
        state->counts.cached[i] += count > 0 && count < INT32_MAX ? (uint64_t)count : 0;
    }
    worker->made_ns = 0;
    for (int i = 0; i < N_STAGES; i++) {
        int64_t ns = json_int(json_item(stages, (size_t)i), 0);
        ns = ns > 0 && ns < INT64_MAX / 1024 ? ns : 0;
        state->counts.stage_ns[i] += ns;
        worker->made_ns += ns;
    }
}

status answer_on(dispatch *state, worker_seat *worker, const frame *head, const json_value *said,
                 const char *name)
{
    const json_value *stages = json_find(said, "stage_ns");
    if (!worker->work || head->row != worker->work->number)
        return ST_OK;
    if (stages) {
        count_stages(state, worker, stages, json_find(said, "cache"));
        return damage_heard(state, worker->work, json_find(said, "damaged"), name);
    }
    const int64_t item = json_int(json_find(said, "item"), LEASE_NO_ITEM);
    const lease *leased = worker->work;
    if (!lease_has(leased, item))
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker says that it is at item %lld, which is not in its lease",
                       (long long)item);
    worker->unbegun = false;
    /* An item that is reported again, or after a later one, gives the lease no further time, so a
     * lease ends within prepd.sample_timeout for each of its items. A long lease that makes
     * progress is no sign of trouble. */
    if (lease_on(worker->work, item))
        state->answered_ns = worker->since_ns = state->now_ns;
    worker->last_item = leased->kind == LEASE_ROW && lease_solo_item(leased) == LEASE_NO_ITEM &&
                        leased->n_items > 0 && item == leased->item[leased->n_items - 1];
    return ST_OK;
}
