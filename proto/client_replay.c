/* client_replay.c: rows from a recording. */
#include "common/program/log.h"
#include "proto/client_parts.h"

/* Rows over all loops. */
static uint64_t rows_of(const record_reader *record, int64_t loops)
{
    const uint64_t rows = record_rows(record);
    uint64_t all;
    if (rows == 0)
        return 0;
    return loops == 0 || __builtin_mul_overflow(rows, (uint64_t)loops, &all) ? UINT64_MAX : all;
}

/* Finds where the rows end: after the last whole step, counted from the first row wanted. */
static status find_end(client *consumer, const replay_options *options)
{
    consumer->end = rows_of(consumer->record, options->loops);
    consumer->next = options->skip < consumer->end ? options->skip : consumer->end;
    if (options->step_rows < 1 || consumer->end == UINT64_MAX)
        return ST_OK;
    consumer->left_over =
        (int64_t)((consumer->end - consumer->next) % (uint64_t)options->step_rows);
    consumer->end -= (uint64_t)consumer->left_over;
    if (consumer->end == 0)
        return FAIL_IN(ST_BAD_INPUT, consumer->name,
                       "%lld rows are recorded here, but a step takes %lld "
                       "(training.global_batch_size): there is no whole step",
                       (long long)consumer->left_over, (long long)options->step_rows);
    return ST_OK;
}

status client_replay(const replay_options *options, client **out)
{
    client *consumer = NULL;
    status st;
    TRY(client_make(options->path, &consumer));
    TRY_OR(failed, record_open(options->path, &consumer->record));
    if (!record_has_tags(consumer->record))
        log_info("the recording %s has version 1: its rows have no tags to be checked against",
                 options->path);
    TRY_OR(failed, find_end(consumer, options));
    if (options->ranks > 1) {
        TRY_OR(failed, share_new(options, consumer->record, consumer->codec, consumer->end,
                                 &consumer->share));
        TRY_OR(failed, share_find(consumer->share, &consumer->next));
    }
    *out = consumer;
    return ST_OK;
failed:
    client_close(&consumer);
    return st;
}

/* Checks that row `index` of the file follows the one before. It may also be the first again, if
 * what was recorded was itself a recording, served in rounds. */
static status check_recorded(const client *consumer, uint64_t index, uint64_t number)
{
    frame before, first;
    if (index == 0)
        return ST_OK;
    TRY(record_head(consumer->record, index - 1, &before));
    if (number == before.row + 1)
        return ST_OK;
    TRY(record_head(consumer->record, 0, &first));
    return number == first.row
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, consumer->name,
                         "row %llu comes after row %llu where row %llu was expected: the "
                         "recording is not of one stream",
                         (unsigned long long)number, (unsigned long long)before.row,
                         (unsigned long long)(before.row + 1));
}

status client_next_recorded(client *consumer, wire_msg *raw, frame *out_head)
{
    if (consumer->next == consumer->end)
        return ST_END;
    const uint64_t i = consumer->next % record_rows(consumer->record);
    TRY(record_read(consumer->record, i, raw));
    TRY(frame_decode(wire_msg_part(raw, 0), consumer->name, out_head));
    TRY(check_recorded(consumer, i, out_head->row));
    consumer->next++;
    return consumer->share ? share_find(consumer->share, &consumer->next) : ST_OK;
}
