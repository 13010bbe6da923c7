/* SPDX-License-Identifier: Apache-2.0 */
/* worker_answers.c: what a worker sends for its lease: the row, index records, or the samples that
 * could not be decoded; and ON, by which it tells in between how far it is.
 *
 * A worker whose machine lacks files is not believed about them. If it says that a file of its row
 * is missing that the daemon has, its copy is incomplete, and after a few of these it is dismissed.
 * Nothing but the files of the lease is opened for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

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
    if (worker->of)
        account_answered(worker->of);
    if (worker->decider && leased->kind == LEASE_ROW)
        state->row_ns += (state->now_ns - worker->leased_ns - state->row_ns) / 8;
    worker->since_ns = worker->leased_ns = state->now_ns;
    state->answered_ns = worker->since_ns;
    return leased;
}

status answer_row(dispatch *state, worker_seat *worker, const frame *head, wire_msg *message,
                  const char *name)
{
    if (!worker->work) {
        worker->owes = false; /* late, or it was taken from it */
        return ST_OK;
    }
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
        compression_link_note(&worker->link, (int64_t)wire_msg_bytes(message),
                              state->now_ns - worker->leased_ns - worker->made_ns);
    lease *leased = end_work(state, worker);
    if (!leased->owner) {
        lease_free(&leased); /* its consumer has left */
    } else if (lease_solo_item(leased) != LEASE_NO_ITEM) {
        failure_refute(state, leased, worker);
        lease_solo_done(&state->book, leased);
    } else if (row_made(state, leased, worker, message) != ST_OK) {
        dispatch_fail(state, status_last()->code);
    }
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

/* Dismisses a worker that has missed too many files. `file` is one that it could not open just now,
 * or NULL. The reason is sent to the worker, so that its user reads it where the worker runs. */
static void dismiss_if_blind(dispatch *state, worker_seat *worker, const char *file)
{
    if (!file || worker->missing_files < MISSING_LIMIT)
        return;
    const status st = FAIL_IN(
        ST_NO_INPUT, file,
        "this and %lld other files that the daemon has cannot be opened by a remote worker (pid %d "
        "on %s), or differ there: its --data-root must name the folder of a complete copy",
        (long long)worker->missing_files - 1, (int)worker->pid, worker->host);
    seat_send_dismissal(state, worker, st);
    seat_gone(state, worker, LOSS_OUTSIDE, "dismissed");
}

/* Counts the files of an index lease that a trusted worker on another machine could not open and
 * the daemon can, or that have another size here: the index must not depend on who read for it.
 * *out_unknown: one that the worker could not open, and whose size cannot be found out here now. */
static int64_t missed_files(const worker_seat *worker, const lease *leased, const json_value *said,
                            const char **out_file, bool *out_unknown)
{
    const json_value *list = json_find(said, "records");
    const int64_t solo = lease_solo_item(leased),
                  count = solo != LEASE_NO_ITEM ? 1 : leased->n_items;
    const source *section = leased->owner;
    int64_t missed = 0;
    *out_file = NULL;
    *out_unknown = false;
    if (worker->local || worker->ship || leased->kind != LEASE_IMAGES)
        return 0;
    for (int64_t k = 0; k < count; k++) {
        const json_value *result = json_item(list, (size_t)k);
        const int64_t j = solo != LEASE_NO_ITEM ? solo : leased->item[k];
        int64_t bytes, mtime_ns;
        stat_image(section, j, &bytes, &mtime_ns);
        *out_unknown |= bytes < 0 && json_find(result, "missing");
        if (!json_find(result, "bytes") || bytes <= 0 ||
            bytes == json_int(json_find(result, "bytes"), -1))
            continue; /* a record without it is refused by index_build_take */
        missed++;
        *out_file = section->data->adapter->image_path(section->data, j);
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
    bool unknown;
    const char *file;
    const int64_t missed = missed_files(worker, leased, said, &file, &unknown);
    if (unknown) { /* it is asked again once it has started anew */
        lease_book_return(&state->book, end_work(state, worker));
        seat_retire(state, worker, true);
        return ST_OK;
    }
    if (missed > 0) {
        worker->missing_files += missed;
        end_work(state, worker);
        lease_book_return(&state->book, leased);
        dismiss_if_blind(state, worker, file);
        return ST_OK;
    }
    const status st = index_build_take(leased, said, worker, name);
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

/* What the daemon sees of a file that a worker of another machine says is missing. GONE where it
 * has no files, or is a decider. */
static sight look_for(dispatch *state, const worker_seat *worker, const lease *leased, int64_t item,
                      const char *missing)
{
    return missing && !worker->decider && !worker->ship
               ? look_at_indexed(state, lease_source(leased), lease_sample(item), missing)
               : SIGHT_GONE;
}

/* A decider could not decode the one sample that it tried alone: the sample is bad. */
static void fail_alone(dispatch *state, lease *leased, const json_value *said)
{
    const int64_t item = lease_solo_item(leased);
    quarantine_item(state, leased, item, json_text(json_find(said, "cause"), ""));
    if (leased->failures && leased->failures->item == item)
        lease_drop_failure(leased);
    lease_solo_done(&state->book, leased);
}

/* Handles FAILED: samples that the worker could not decode, of a prefix all branches
 * (doubts.c). A file that only this worker misses is the worker's fault. */
status answer_failed(dispatch *state, worker_seat *worker, const frame *head,
                     const json_value *said, const char *name)
{
    lease *leased = worker->work;
    const json_value *list;
    const char *missed = NULL; /* a file */
    if (!leased || head->row != leased->number)
        return ST_OK; /* late */
    if (leased->kind != LEASE_ROW)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker answered a lease of index records with failed samples");
    TRY(check_failed(leased, said, name, &list));
    end_work(state, worker);
    if (!leased->owner) { /* its consumer has left */
        lease_free(&leased);
        return ST_OK;
    }
    if (lease_solo_item(leased) != LEASE_NO_ITEM) {
        fail_alone(state, leased, json_item(list, 0));
        return ST_OK;
    }
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *value = json_item(list, i);
        const int64_t item = json_int(json_find(value, "id"), LEASE_NO_ITEM);
        const char *missing = json_text(json_find(value, "missing"), NULL);
        const sight seen = look_for(state, worker, leased, item, missing);
        leased->decide |= seen != SIGHT_GONE;
        if (seen == SIGHT_THERE) {
            worker->missing_files++;
            missed = missing;
        } else if (seen == SIGHT_GONE &&
                   failure_note(leased, item, json_text(json_find(value, "cause"), ""), worker) !=
                       ST_OK) {
            dispatch_fail(state, ST_NO_MEMORY);
        }
    }
    lease_book_return(&state->book, leased);
    dismiss_if_blind(state, worker, missed);
    return ST_OK;
}

/* --- damaged pictures ---
 *
 * Pictures that decode, but with a warning that their file is damaged (data.damaged
 * accept). They are used as they decode. Here they are counted, and their names are kept for `prepd
 * status` and `prepd check`. */

enum { WARNING_BYTES = 240 };
static const int64_t TOLD = 10; /* logged for a section; a data set may have thousands */

/* Records a warning about picture `index` of a sample. */
static status note_damage(dispatch *state, source *section, int64_t id, int64_t index,
                          const char *warning)
{
    sample smp;
    bool fresh = false;
    char text[WARNING_BYTES];
    arena_reset(&state->scratch);
    TRY(section->data->adapter->outline(section->data, id, &state->scratch, &smp));
    if (index < 0 || index >= smp.n_images)
        return FAIL(ST_PROTOCOL,
                    "the worker reported damage of picture %lld of a sample that has %d pictures",
                    (long long)index, (int)smp.n_images);
    snprintf(text, sizeof(text), "%s", warning);
    if (section->damaged.n == BAD_SAMPLES_MOST)
        return ST_OK; /* further ones are neither named nor counted */
    if (bad_samples_add(&section->damaged, smp.images[index], text, &fresh) != ST_OK) {
        dispatch_fail(state, ST_NO_MEMORY); /* the daemon's own failure, not the worker's */
        return ST_OK;
    }
    if (fresh && section->damaged.n <= TOLD)
        core_warn(
            state, "picture damaged, used as it decodes section=%s file=\"%s\" warning=\"%s\"%s",
            section->name, section->data->adapter->image_path(section->data, smp.images[index]),
            text, section->damaged.n == TOLD ? "; further ones are counted (prepd status)" : "");
    return ST_OK;
}

/* Takes the "damaged" list that a worker sent of the row it has made. */
static status take_damage(dispatch *state, const lease *leased, const json_value *list,
                          const char *name)
{
    if (!leased->owner || leased->kind != LEASE_ROW)
        return ST_OK;
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *said = json_item(list, i);
        const char *warning;
        int64_t id, k;
        TRY(json_want_int(said, "id", name, &id));
        TRY(json_want_int(said, "image", name, &k));
        TRY(json_want_text(said, "warning", name, &warning));
        if (!lease_has(leased, id))
            return FAIL_IN(ST_PROTOCOL, name,
                           "the worker reported damage in sample %lld, which is not in its lease",
                           (long long)id);
        TRY(note_damage(state, lease_source(leased), id, k, warning));
    }
    return ST_OK;
}

int64_t damage_put(const source *section, int64_t from, int64_t most, json_writer *out)
{
    int64_t i = from < 0 ? 0 : from;
    json_begin_array(out);
    for (; i < section->damaged.n && most-- > 0; i++) {
        json_begin_object(out);
        json_put_key_cstr(
            out, "file", section->data->adapter->image_path(section->data, section->damaged.id[i]));
        json_put_key_cstr(out, "warning", section->damaged.cause[i]);
        json_end_object(out);
    }
    json_end_array(out);
    return i;
}

/* --- ON --- */

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

/* The decider begins to decode row number `which` of those that it compares its own with. What it
 * dies of then is that row. */
static status answer_comparing(dispatch *state, worker_seat *worker, int64_t which,
                               const char *name)
{
    const wire_msg *rows[2];
    lease *leased = worker->work;
    if (which < leased->comparing || which >= doubt_rows(leased, rows))
        return FAIL_IN(ST_PROTOCOL, name,
                       "the worker says that it compares row %lld, which it was not given",
                       (long long)which);
    leased->comparing = (int)which + 1;
    state->answered_ns = worker->since_ns = state->now_ns;
    return ST_OK;
}

status answer_on(dispatch *state, worker_seat *worker, const frame *head, const json_value *said,
                 const char *name)
{
    const json_value *stages = json_find(said, "stage_ns");
    if (!worker->work || head->row != worker->work->number)
        return ST_OK;
    if (stages) {
        const json_value *same = json_find(said, "same");
        lease *made = worker->work;
        for (size_t k = 0; k < sizeof(made->same) / sizeof(*made->same); k++)
            made->same[k] = json_bool(json_item(same, k), false);
        count_stages(state, worker, stages, json_find(said, "cache"));
        return take_damage(state, worker->work, json_find(said, "damaged"), name);
    }
    if (json_find(said, "comparing"))
        return answer_comparing(state, worker, json_int(json_find(said, "comparing"), -1), name);
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
