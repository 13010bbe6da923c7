/* refusals.c: REFUSE: a consumer got a row that is not what its tag says, or that cannot be read.
 *
 * The worker that made it is dismissed, and the consumer's session ends with the word to come back:
 * with the cursor of the row before, it gets the row again, made by another worker. If it refuses
 * the same row of two workers, it is the consumer that is at fault. */
#include "prepd/serve/core/dispatch_state.h"

/* For so long a refusal counts against its consumer: it comes back for the row at once. */
static const int64_t REFUSAL_NS = 600000000000;

/* Whether the same row of another worker was refused before. Notes this refusal. */
static bool is_second(dispatch *state, const consumer_seat *consumer, const made_row *made)
{
    bool second = false;
    for (int i = 0; i < MAX_REFUSALS; i++) {
        const refusal *before = &state->refusals[i];
        second |= before->by && before->by != made->by && before->row == made->row &&
                  before->section == consumer->src && before->kind == consumer->kind &&
                  before->rank == consumer->rank && before->ranks == consumer->ranks &&
                  state->now_ns - before->told_ns < REFUSAL_NS;
    }
    state->refusals[state->next_refusal++ % MAX_REFUSALS] =
        (refusal){consumer->src, consumer->kind, consumer->rank, consumer->ranks,
                  made->row,     made->by,       state->now_ns};
    return second;
}

static void dismiss_maker(dispatch *state, uint64_t number, uint64_t row)
{
    worker_seat *worker = seat_of_number(state, number);
    if (!worker)
        return; /* it has left */
    const status st = FAIL(ST_PROTOCOL,
                           "row %llu, made by this worker (pid %d on %s), is not what was ordered: "
                           "it is dismissed",
                           (unsigned long long)row, (int)worker->pid, worker->host);
    seat_tell_dismissal(state, worker, st);
    seat_dismiss(state, worker, "its row was refused");
}

status refusal_take(dispatch *state, consumer_seat *consumer, const json_value *said,
                    const char *name)
{
    int64_t row;
    const char *why;
    TRY(json_want_int(said, "row", name, &row));
    TRY(json_want_text(said, "message", name, &why));
    const made_row *found = sent_row_find(consumer, (uint64_t)row);
    if (!found)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the consumer refuses row %lld, which was not sent to it lately",
                       (long long)row);
    const made_row made = *found;
    outside_warn(&state->outside, "row refused row=%lld rank=%d of=%d why=\"%s\"", (long long)row,
                 consumer->rank, consumer->ranks, why);
    if (is_second(state, consumer, &made))
        return FAIL_IN(ST_PROTOCOL, name,
                       "row %lld was refused from two workers, so it is this consumer (rank %d of "
                       "%d) that is at fault: %s",
                       (long long)row, consumer->rank, consumer->ranks, why);
    dismiss_maker(state, made.by, made.row);
    consumer_close(state, consumer, "a row that was refused is made again");
    return ST_OK;
}
