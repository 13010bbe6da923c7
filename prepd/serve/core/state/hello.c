/* SPDX-License-Identifier: Apache-2.0 */
/* hello.c: reads and checks HELLO and CREDIT, for the dispatcher and for a recording. */
#include "prepd/serve/core/state/hello.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/rank_lists.h"

static const int64_t MAX_CREDIT = (int64_t)1 << 42; /* 4 TiB, so that no sum can overflow */

const wire_limits consumer_limits = {.part_bytes = HELLO_BYTES,
                                     .unsent = 1024,
                                     .unread_bytes = 10 << 20,
                                     .all_unread_bytes = 12 << 20};
static const int64_t STILL_HERE_NS = 15000000000, GOODBYE_NS = 1000000000;

/* Reads a name that HELLO may give: printable, so that it can stand in a log line. */
static status read_name(const json_value *said, const char *member, const char *name,
                        const char **out)
{
    const json_value *given = json_given(said, member);
    *out = "";
    if (!given)
        return ST_OK;
    TRY(json_want_text(said, member, name, out));
    const size_t length = json_text_size(given);
    bool good = length > 0 && length <= HELLO_NAME_BYTES;
    for (size_t i = 0; good && i < length; i++)
        good = (*out)[i] > ' ' && (*out)[i] < 0x7f && !strchr("\"\\", (*out)[i]);
    return good ? ST_OK
                : FAIL_IN(ST_PROTOCOL, name,
                          "HELLO's %s must be a name of 1 to %d printable characters of ASCII, "
                          "without spaces, quotes and backslashes",
                          member, HELLO_NAME_BYTES);
}

const char *const STREAM_NAMES[N_STREAMS] = {"train", "eval", "sample"};

int find_stream(const char *name)
{
    int place = 0;
    while (place < N_STREAMS && strcmp(name, STREAM_NAMES[place]) != 0)
        place++;
    return place;
}

status hello_read(const json_value *said, int64_t step_rows, const char *name, hello *out)
{
    int64_t version;
    const int64_t ranks = json_int(json_find(said, "ranks"), 1);
    const int64_t rank = json_int(json_find(said, "rank"), 0);
    hello greeting = {.start_row = json_int(json_find(said, "start_row"), 0),
                      .prefixes = json_bool(json_find(said, "prefixes"), false)};
    TRY(json_want_int(said, "version", name, &version));
    TRY(json_want_text(said, "stream", name, &greeting.stream));
    if (version != SESSION_VERSION)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the consumer has protocol version %lld, and this daemon needs version %d: "
                       "run both programs of the same release",
                       (long long)version, SESSION_VERSION);
    if (find_stream(greeting.stream) == N_STREAMS)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the consumer asks for stream \"%s\"; expected train, eval or sample",
                       greeting.stream);
    TRY(json_want_int(said, "credit_bytes", name, &greeting.credit_bytes));
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks)
        return FAIL_IN(ST_PROTOCOL, name, "there is no rank %lld of %lld", (long long)rank,
                       (long long)ranks);
    if (ranks > step_rows)
        return FAIL_IN(ST_CONFIG, name,
                       "%lld ranks are too many for training.global_batch_size %lld: every rank "
                       "needs a row of each step",
                       (long long)ranks, (long long)step_rows);
    if (greeting.credit_bytes < 1 || greeting.credit_bytes > MAX_CREDIT || greeting.start_row < 0)
        return FAIL_IN(ST_PROTOCOL, name,
                       "HELLO has an impossible credit of %lld bytes or start row %lld",
                       (long long)greeting.credit_bytes, (long long)greeting.start_row);
    TRY(read_name(said, "run", name, &greeting.run));
    TRY(read_name(said, "consumer", name, &greeting.consumer));
    greeting.rank = (int)rank;
    greeting.ranks = (int)ranks;
    *out = greeting;
    return ST_OK;
}

status hello_rank_is_served(const hello *greeting, const char *ranks, const char *name)
{
    if (strcmp(greeting->stream, "train") != 0 || rank_ranges_have(ranks, greeting->rank))
        return ST_OK;
    return FAIL_IN(ST_CONFIG, name,
                   "this daemon serves the ranks %.200s of the training stream (prepd.ranks), and "
                   "the consumer is rank %d of %d: connect it to the daemon that serves this rank, "
                   "or start this one with another prepd.ranks",
                   ranks, greeting->rank, greeting->ranks);
}

status hello_knows_prefixes(bool prefixes, const char *name)
{
    if (prefixes)
        return ST_OK;
    return FAIL_IN(
        ST_CONFIG, name,
        "samples of this stream share prefixes (data.group shared_prefix): a consumer must say "
        "\"prefixes\" in HELLO, which in client.py is prefixes=True. This one does not, and would "
        "see questions without their pictures");
}

status hello_cursor(const json_value *said, json_value **out_parsed, const json_value **out)
{
    const json_value *cursor = json_find(said, "cursor");
    json_value *parsed = NULL;
    if (cursor && json_typeof(cursor) == JSON_TEXT) { /* as it stood in a row's metadata */
        TRY(json_parse(json_text(cursor, ""), json_text_size(cursor), "cursor", &parsed));
        cursor = parsed;
    }
    *out_parsed = parsed;
    *out = cursor && json_typeof(cursor) != JSON_NULL ? cursor : NULL;
    return ST_OK;
}

status hello_options_agree(const char *stream_json, const json_value *said, const char *name)
{
    const json_value *theirs = json_find(said, "options");
    char *difference = NULL, *text = NULL;
    size_t size;
    json_writer writer;
    if (!theirs || json_typeof(theirs) == JSON_NULL)
        return ST_OK; /* the consumer takes the stream as it is */
    json_writer_init(&writer);
    json_put_value(&writer, theirs);
    status st = json_writer_take(&writer, &text, &size);
    json_writer_done(&writer);
    if (st == ST_OK)
        st = conf_stream_diff(stream_json, text, &difference);
    free(text);
    if (st == ST_OK && difference)
        st = FAIL_IN(ST_CONFIG, name,
                     "the consumer's options give another stream: %s. Start both programs with "
                     "the same configuration",
                     difference);
    free(difference);
    return st;
}

status hello_is_other(const char *name, frame_kind kind)
{
    return FAIL_IN(kind == KIND_JOIN ? ST_CONFIG : ST_PROTOCOL, name,
                   "a consumer does not send %s%s", frame_kind_name(kind),
                   kind == KIND_JOIN
                       ? ". This is the endpoint of trainers; workers connect to the same with "
                         ".workers appended (with tcp, to the next port)"
                       : "");
}

status hello_is_missing(const char *name)
{
    return FAIL_IN(
        ST_UNAVAILABLE, name,
        "credit came on a connection that has not sent hello; a new connection must begin "
        "with hello");
}

status credit_take(const json_value *said, const char *name, int64_t *inout_credit,
                   int64_t *inout_unreturned)
{
    int64_t bytes;
    TRY(json_want_int(said, "bytes", name, &bytes));
    if (bytes < 0 || bytes > *inout_unreturned)
        return FAIL_IN(ST_PROTOCOL, name,
                       "the consumer gives back %lld bytes of credit, but %lld are under way",
                       (long long)bytes, (long long)*inout_unreturned);
    *inout_credit += bytes;
    *inout_unreturned -= bytes;
    return ST_OK;
}

bool consumer_is_there(const outside *world, const wire_peer *to)
{
    static const char json[] = "{\"bytes\":0}";
    const status st =
        outside_send_json(world, DOOR_CONSUMERS, to, KIND_CREDIT, 0, json, sizeof(json) - 1);
    return st == ST_OK || st == ST_TIMEOUT; /* TIMEOUT: it is connected but does not read */
}

bool consumer_is_lost(const outside *world, const wire_peer *to, int64_t now_ns,
                      int64_t *inout_said_ns, int64_t *inout_away_ns)
{
    const bool was_away = *inout_away_ns > 0;
    if (was_away ? now_ns - *inout_away_ns < GOODBYE_NS : now_ns - *inout_said_ns < STILL_HERE_NS)
        return false;
    *inout_said_ns = now_ns;
    const bool is_there = consumer_is_there(world, to);
    *inout_away_ns = is_there ? 0 : now_ns;
    return was_away && !is_there;
}
