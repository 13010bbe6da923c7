/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_control.c: `prepd status`, `scale`, `drain` and `admit`, which send a command to a running
 * daemon and print its answer, and `prepd keygen`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "common/base/words.h"
#include "prepd/cli/verbs.h"
#include "prepd/agreed/stage_times.h"
#include "prepd/cli/verbs_child.h"
#include "proto/row/frame.h"
#include "proto/wire/wire.h"

enum {
    ANSWER_MS = 5000, /* how long to wait for a daemon */
    DAMAGED_SHOWN = 10,
    BUSY_MS = 55000, /* how long to wait on for one that is there but busy */
};

/* Where the daemon is and which keys it takes: --connect ENDPOINT and --keys DIR, or prepd.endpoint
 * and prepd.keys of -c FILE. Both are on the heap; keys is "" for none. */
typedef struct daemon_address {
    char *endpoint, *keys;
} daemon_address;

static void address_done(daemon_address *daemon)
{
    free(daemon->endpoint);
    free(daemon->keys);
}

static status address_set(daemon_address *daemon, const char *endpoint, const char *keys)
{
    daemon->endpoint = strdup(endpoint);
    daemon->keys = strdup(keys);
    return daemon->endpoint && daemon->keys ? ST_OK
                                            : FAIL(ST_NO_MEMORY, "no memory for an endpoint");
}

/* Takes the words of the address out of argv. */
static status find_daemon(int *argc, char **argv, daemon_address *out)
{
    const char *given, *keys;
    conf options;
    TRY(verb_take(argc, argv, "--connect", &given));
    TRY(verb_take(argc, argv, "--keys", &keys));
    if (given) {
        TRY(verb_endpoint(given));
        return address_set(out, given, keys ? keys : "");
    }
    TRY(verb_load(&options, argc, argv, NULL));
    log_init("prepd", options.log_level, options.log_json);
    status st = address_set(out, options.prepd_endpoint, keys ? keys : options.prepd_keys);
    conf_done(&options);
    return st;
}

/* Fails if this user may not use the socket. A daemon that is not there may just be starting, so it
 * is waited for. */
static status check_listener(const char *control)
{
    const status st = wire_listens(control);
    if (st == ST_UNAVAILABLE)
        log_info("waiting for a daemon for at most %d s: %s", ANSWER_MS / 1000, status_text());
    return st == ST_UNAVAILABLE ? ST_OK : st;
}

static status no_answer(const char *control)
{
    if (wire_listens(control) != ST_OK)
        return FAIL(ST_UNAVAILABLE, "no daemon answered within %d s: %s", ANSWER_MS / 1000,
                    status_text());
    return FAIL_IN(ST_UNAVAILABLE, control,
                   "no daemon answered within %d s: is prepd serve running, with this "
                   "prepd.endpoint?",
                   ANSWER_MS / 1000);
}

static status await_answer(wire_socket *socket, const char *control, wire_msg *message)
{
    status st = wire_recv(socket, ANSWER_MS, NULL, message);
    if (st != ST_TIMEOUT)
        return st;
    if (!wire_greeted(socket))
        return no_answer(control);
    log_info("the daemon is there but has not answered yet; waiting for at most %d s",
             (ANSWER_MS + BUSY_MS) / 1000);
    st = wire_recv(socket, BUSY_MS, NULL, message);
    if (st != ST_TIMEOUT)
        return st;
    return FAIL_IN(ST_UNAVAILABLE, control, "the daemon is there but did not answer within %d s",
                   (ANSWER_MS + BUSY_MS) / 1000);
}

/* Sends a command and returns the answer as text (on the heap) and parsed. */
static status send_command(const daemon_address *daemon, const char *command, char **out_text,
                           json_value **out)
{
    char *control = NULL;
    wire *net = NULL;
    wire_socket *socket = NULL;
    wire_msg *message = NULL;
    frame head;
    status st = ST_OK;
    char *reachable = NULL;
    TRY(wire_reachable(daemon->endpoint, &reachable));
    TRY_OR(done, wire_beside(reachable, 2, &control));
    TRY_OR(done, check_listener(control));
    TRY_OR(done, wire_new(&net));
    if (daemon->keys[0])
        TRY_OR(done, wire_use_keys(net, daemon->keys));
    TRY_OR(failed, wire_connect(net, control, &socket));
    TRY_OR(failed, wire_send_json(socket, NULL, KIND_COMMAND, 0, command, strlen(command)));
    TRY_OR(failed, wire_msg_new(&message));
    TRY_OR(failed, await_answer(socket, control, message));
    TRY_OR(failed, wire_read_json(message, control, &head, out));
    if (head.kind == KIND_ERROR) {
        st = wire_error(*out, control);
        json_free(out);
        goto failed;
    }
    span body = wire_msg_part(message, 1);
    *out_text = strndup((const char *)body.data, body.size);
    if (!*out_text) {
        json_free(out);
        st = FAIL(ST_NO_MEMORY, "no memory for an answer");
    }
    goto done;
failed: /* over tcp the note names a port that the user did not write */
    if (!wire_is_ipc(control))
        st = status_context(st, "the control port of %s", daemon->endpoint);
done:
    wire_msg_free(&message);
    wire_close(&socket);
    wire_free(&net);
    free(control);
    free(reachable);
    return st;
}

status verb_ask(const char *endpoint, const char *command, json_value **out)
{
    daemon_address daemon = {0};
    char *text = NULL;
    status st = address_set(&daemon, endpoint, "");
    if (st == ST_OK)
        st = send_command(&daemon, command, &text, out);
    address_done(&daemon);
    free(text);
    return st;
}

static long long read_integer(const json_value *value, const char *key)
{
    return (long long)json_int(json_find(value, key), 0);
}

static double real(const json_value *value, const char *key)
{
    return json_real(json_find(value, key), 0);
}

static void print_source(const json_value *all, const char *name)
{
    const json_value *value = json_find(all, name), *bad = json_find(value, "quarantined");
    const long long shown = (long long)json_count(bad),
                    all_bad = read_integer(value, "quarantined_count");
    printf("%-11s %s, %lld samples, %lld quarantined\n", name,
           escape_text(json_text(json_find(value, "state"), "-")).text,
           read_integer(value, "samples"), all_bad);
    for (size_t i = 0; i < json_count(bad); i++)
        printf("            sample %lld: %s\n", read_integer(json_item(bad, i), "id"),
               escape_text(json_text(json_find(json_item(bad, i), "cause"), "-")).text);
    if (all_bad > shown)
        printf("            and %lld more\n", all_bad - shown);
    const char *warning = json_text(json_find(value, "quarantine_warning"), "");
    if (*warning)
        printf("            %s\n", escape_text(warning).text);
    const json_value *damaged = json_find(value, "damaged");
    const long long count = read_integer(value, "damaged_count");
    if (count > 0)
        printf("            %lld damaged pictures used as they decode (data.damaged)\n", count);
    for (size_t i = 0; i < json_count(damaged) && i < DAMAGED_SHOWN; i++)
        printf("            picture %s: %s\n",
               escape_text(json_text(json_find(json_item(damaged, i), "file"), "-")).text,
               escape_text(json_text(json_find(json_item(damaged, i), "warning"), "-")).text);
    if (count > DAMAGED_SHOWN)
        printf("            and %lld more; prepd check lists all\n", count - DAMAGED_SHOWN);
}

/* Whom the daemon believes, whom not, and what waits for that. */
static void print_trust(const json_value *value)
{
    const json_value *excluded = json_find(value, "excluded"),
                     *watched = json_find(value, "watched");
    const char *waits = json_text(json_find(value, "waits_for_decider"), "");
    printf("trust       %lld deciders; %lld rows checked, %lld sent unchecked; %lld words "
           "contradicted, "
           "%lld rows in doubt\n",
           read_integer(value, "deciders"), read_integer(value, "rows_checked"),
           read_integer(value, "rows_unchecked"), read_integer(value, "words_contradicted"),
           read_integer(value, "doubts_waiting"));
    for (size_t i = 0; i < json_count(excluded); i++) {
        const json_value *member = json_item(excluded, i);
        printf("            key %s is excluded for %.0f s: %s\n",
               escape_text(json_text(json_find(member, "key"), "-")).text, real(member, "seconds"),
               escape_text(json_text(json_find(member, "why"), "-")).text);
    }
    for (size_t i = 0; i < json_count(watched); i++)
        printf("            the next %lld rows of key %s are checked\n",
               read_integer(json_item(watched, i), "rows"),
               escape_text(json_text(json_find(json_item(watched, i), "key"), "-")).text);
    if (*waits)
        printf("            %s\n", escape_text(waits).text);
    if (read_integer(value, "alarms") > 0)
        printf("            ALARM %.0f s ago (%lld in all): %s\n", real(value, "alarm_seconds_ago"),
               read_integer(value, "alarms"),
               escape_text(json_text(json_find(value, "alarm"), "-")).text);
}

static void print_status(const json_value *value)
{
    const json_value *workers = json_find(value, "workers"),
                     *consumers = json_find(value, "consumers");
    int64_t busy = 0;
    double oldest = 0;
    for (size_t i = 0; i < json_count(workers); i++)
        if (json_bool(json_find(json_item(workers, i), "busy"), false)) {
            const double age = real(json_item(workers, i), "seconds");
            busy++;
            oldest = age > oldest ? age : oldest;
        }
    const char *ranks = json_text(json_find(value, "ranks"), "");
    printf("daemon      pid %lld at %s, %s%s%sup %.0f s, %.1f MiB%s\n", read_integer(value, "pid"),
           escape_text(json_text(json_find(value, "endpoint"), "-")).text, *ranks ? "ranks " : "",
           escape_text(ranks).text, *ranks ? ", " : "", real(value, "seconds"),
           real(value, "rss_bytes") / 1048576.0,
           json_bool(json_find(value, "draining"), false) ? ", draining" : "");
    printf("sent        %lld rows, %lld samples, %.1f MiB; now %.1f rows/s, %.1f samples/s\n",
           read_integer(value, "rows"), read_integer(value, "samples"),
           real(value, "bytes") / 1048576.0, real(value, "rows_per_s"),
           real(value, "samples_per_s"));
    printf("workers     %zu joined (%lld busy), %lld local of %lld wanted, %lld replaced\n",
           json_count(workers), (long long)busy, read_integer(value, "workers_alive"),
           read_integer(value, "workers_target"), read_integer(value, "workers_replaced"));
    printf("leases      oldest %.1f s; %lld lost (%lld crash, %lld timeout, %lld from outside, "
           "%lld broken protocol), %lld waiting\n",
           oldest, read_integer(value, "leases_lost"), read_integer(value, "lost_by_crash"),
           read_integer(value, "lost_by_timeout"), read_integer(value, "lost_from_outside"),
           read_integer(value, "lost_by_breach"), read_integer(value, "leases_waiting"));
    print_trust(value);
    const json_value *cache = json_find(value, "cache");
    const long long hits = read_integer(cache, "hits"), misses = read_integer(cache, "misses");
    if (hits + misses > 0)
        printf("cache       %lld pictures found, %lld not (%.1f %%)\n", hits, misses,
               100.0 * (double)hits / (double)(hits + misses));
    printf("stages      ");
    for (int i = 0; i < N_STAGES; i++)
        printf("%s %.1f s%s", stage_names[i],
               real(json_find(value, "stage_seconds"), stage_names[i]),
               i + 1 < N_STAGES ? ", " : " (all workers together)\n");
    for (size_t i = 0; i < json_count(consumers); i++) {
        const json_value *member = json_item(consumers, i);
        printf("consumer    %s rank %lld of %lld: %lld rows sent, next %lld, %lld under way, "
               "%.1f MiB credit left\n",
               escape_text(json_text(json_find(member, "stream"), "-")).text,
               read_integer(member, "rank"), read_integer(member, "ranks"),
               read_integer(member, "rows_sent"), read_integer(member, "next_row"),
               read_integer(member, "in_work"), real(member, "credit_bytes") / 1048576.0);
        const double left = json_real(json_find(member, "epoch_seconds_left"), -1);
        printf("            epoch %lld, %.1f %% done", read_integer(member, "epoch"),
               100 * real(member, "epoch_share"));
        printf(left >= 0 ? ", %.0f min left\n" : "\n", left / 60);
    }
    print_source(value, "train");
    print_source(value, "eval");
}

static status run_command(int argc, char **argv, const char *command, char **out_text,
                          json_value **out)
{
    daemon_address daemon = {0};
    status st = find_daemon(&argc, argv, &daemon);
    if (st == ST_OK)
        st = verb_all_taken(argc, argv);
    if (st == ST_OK)
        st = send_command(&daemon, command, out_text, out);
    address_done(&daemon);
    return st;
}

status verb_keygen(int argc, char **argv)
{
    const char *out, *name, *words;
    char given[WIRE_ROLES_TEXT];
    unsigned roles = WIRE_ROWS;
    TRY(verb_take(&argc, argv, "--out", &out));
    TRY(verb_take(&argc, argv, "--client", &name));
    TRY(verb_take(&argc, argv, "--roles", &words));
    TRY(verb_all_taken(argc, argv));
    if (!out || !*out)
        return FAIL(ST_USAGE,
                    "keygen needs --out DIR, the folder of the daemon's keys (prepd.keys)");
    if (words && !name)
        return FAIL(ST_USAGE,
                    "--roles belongs to --client NAME: the keys that keygen makes without "
                    "it are the daemon's own, which have all roles but trusted");
    if (words)
        TRY(wire_roles_read(words, "--roles", &roles));
    TRY(wire_keys_make(out, name, roles));
    wire_roles_print(roles, given);
    if (name)
        printf("%s/%s: copy this folder to the other machine (prepd.keys, --keys); roles: %s\n",
               escape_text(out).text, escape_text(name).text, given);
    else
        printf(
            "%s: name this folder in the daemon's prepd.keys; --client NAME makes keys for other "
            "machines\n",
            escape_text(out).text);
    return ST_OK;
}

status verb_status(int argc, char **argv)
{
    char *text = NULL;
    json_value *value = NULL;
    const bool json = verb_take_flag(&argc, argv, "--json");
    TRY(run_command(argc, argv, "{\"command\":\"status\"}", &text, &value));
    if (json)
        printf("%s\n", text);
    else
        print_status(value);
    free(text);
    json_free(&value);
    return ST_OK;
}

status verb_scale(int argc, char **argv)
{
    enum { MOST = 1024 };
    char *text = NULL, command[64];
    json_value *value = NULL;
    daemon_address daemon = {0};
    int64_t count;
    status st;
    TRY_OR(done, find_daemon(&argc, argv, &daemon));
    if (argc < 2) {
        st = FAIL(ST_USAGE, "scale needs the number of workers: prepd scale N -c FILE");
        goto done;
    }
    TRY_OR(done, verb_number("scale", argv[1], 0, MOST, &count));
    argv[1] = argv[0];
    TRY_OR(done, verb_all_taken(argc - 1, argv + 1));
    snprintf(command, sizeof(command), "{\"command\":\"scale\",\"workers\":%lld}",
             (long long)count);
    TRY_OR(done, send_command(&daemon, command, &text, &value));
    printf("workers wanted: %lld\n", read_integer(value, "workers_target"));
done:
    address_done(&daemon);
    free(text);
    json_free(&value);
    return st;
}

status verb_drain(int argc, char **argv)
{
    char *text = NULL;
    json_value *value = NULL;
    TRY(run_command(argc, argv, "{\"command\":\"drain\"}", &text, &value));
    printf("draining\n");
    free(text);
    json_free(&value);
    return ST_OK;
}

/* The command as JSON, on the heap. */
static status admit_command(const char *name, char **out)
{
    json_writer writer;
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "command", "admit");
    json_put_key_cstr(&writer, "name", name);
    json_end_object(&writer);
    const status st = json_writer_take(&writer, out, &size);
    json_writer_done(&writer);
    return st;
}

status verb_admit(int argc, char **argv)
{
    char *text = NULL, *command = NULL;
    json_value *value = NULL;
    daemon_address daemon = {0};
    status st;
    TRY_OR(done, find_daemon(&argc, argv, &daemon));
    if (argc < 2 || !argv[1][0]) {
        st = FAIL(ST_USAGE, "admit needs the name of a key, or an address, as prepd status shows "
                            "it: prepd admit NAME -c FILE");
        goto done;
    }
    const char *name = argv[1];
    argv[1] = argv[0];
    TRY_OR(done, verb_all_taken(argc - 1, argv + 1));
    TRY_OR(done, admit_command(name, &command));
    TRY_OR(done, send_command(&daemon, command, &text, &value));
    const char *was = json_text(json_find(value, "was"), "");
    printf("admitted: %s (was %s)\n", escape_text(name).text,
           escape_text(*was ? was : "neither excluded nor watched").text);
done:
    address_done(&daemon);
    free(command);
    free(text);
    json_free(&value);
    return st;
}
