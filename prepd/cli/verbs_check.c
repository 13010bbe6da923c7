/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_check.c: `prepd check`, which makes every sample of a data set once, in workers, and lists
 * each bad one. It reads the stream "sample" of a private daemon, whose rows hold one sample each.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/json/json.h"
#include "common/program/bar.h"
#include "common/base/words.h"
#include "prepd/dataset/dataset.h"
#include "prepd/cli/verbs_child.h"
#include "prepd/cli/verbs.h"
#include "prepd/worker/media/image_files.h"

/* Prints a line per bad sample: number, name, file and cause, separated by tabs. Tabs within them
 * are escaped. */
static status list_bad(const row *one, int64_t index, int64_t *n_bad)
{
    json_value *list = NULL;
    if (!one->quarantine || !one->quarantine[0])
        return ST_OK;
    TRY(json_parse(one->quarantine, strlen(one->quarantine), "quarantine", &list));
    if (json_count(list) > 0)
        bar_clear();
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *question = json_item(list, i);
        printf("%lld\t%s\t%s\t%s\n", (long long)json_int(json_find(question, "id"), index),
               escape_text(json_text(json_find(question, "name"), "-")).text,
               escape_text(json_text(json_find(question, "file"), "-")).text,
               escape_text(json_text(json_find(question, "cause"), "-")).text);
        (*n_bad)++;
    }
    json_free(&list);
    return ST_OK;
}

static status check_rows(client *rows, int64_t samples, int64_t *out_bad, int64_t *out_seen)
{
    arena memory;
    status st = ST_OK;
    int64_t seen = 0;
    const int64_t began_ns = clock_ns();
    arena_init(&memory, 0);
    *out_bad = 0;
    for (;; seen++) {
        row one;
        arena_reset(&memory);
        st = client_next(rows, &memory, &one, NULL, NULL);
        if (st != ST_OK)
            break;
        TRY_OR(done, list_bad(&one, seen, out_bad));
        bar_draw(samples > 0 ? (double)(seen + 1) / (double)samples : -1.0,
                 bar_seconds_left(began_ns, seen + 1, samples), "sample %lld of %lld, %lld bad",
                 (long long)seen + 1, (long long)samples, (long long)*out_bad);
    }
    bar_clear();
    *out_seen = seen;
    if (st == ST_END)
        st = ST_OK;
done:
    arena_done(&memory);
    return st;
}

/* Prints a line per damaged picture that is used nevertheless: "damaged", file and warning,
 * separated by tabs. The daemon has the list, and gives it in pieces. */
static status list_damaged(const char *endpoint, int64_t *out_n)
{
    int64_t from = 0, count = 1;
    while (from < count) {
        char command[64];
        json_value *value = NULL;
        snprintf(command, sizeof(command), "{\"command\":\"damaged\",\"from\":%lld}",
                 (long long)from);
        TRY(verb_ask(endpoint, command, &value));
        const json_value *list = json_find(value, "damaged");
        for (size_t i = 0; i < json_count(list); i++)
            printf("damaged\t%s\t%s\n",
                   escape_text(json_text(json_find(json_item(list, i), "file"), "-")).text,
                   escape_text(json_text(json_find(json_item(list, i), "warning"), "-")).text);
        from = json_int(json_find(value, "next"), 0);
        count = json_count(list) > 0 ? json_int(json_find(value, "count"), 0) : 0;
        json_free(&value);
    }
    *out_n = from;
    return ST_OK;
}

/* The hash of a folder's frames, one after the other. */
static status hash_frames(const dataset *set, int64_t index, const image_place *place, hash128 *out)
{
    char path[PATH_MAX];
    hash128 whole = {{0}}, one;
    for (int32_t k = 0; k < place->n_frames; k++) {
        snprintf(path, sizeof(path), "%s/%s/%s", set->adapter->root(set), place->path,
                 set->adapter->frame(set, index, k));
        TRY(hash_file(path, &one));
        whole = hash_chain(whole, one);
    }
    *out = whole;
    return ST_OK;
}

/* The content hash of a file, of a piece of one, or of a folder of frames. */
static status hash_image(const dataset *set, int64_t index, hash128 *out)
{
    char path[PATH_MAX];
    image_place place;
    arena memory;
    span bytes;
    int64_t file_bytes, mtime_ns;
    dataset_image_place(set, index, &place);
    dataset_image_stat(set, index, &file_bytes, &mtime_ns);
    if (file_bytes <= 0 && mtime_ns == 0)
        return FAIL_IN(ST_NO_INPUT, set->adapter->image_path(set, index), "cannot be read");
    if (place.n_frames)
        return hash_frames(set, index, &place, out);
    if (place.bytes < 0) {
        snprintf(path, sizeof(path), "%s/%s", set->adapter->root(set), place.path);
        return hash_file(path, out);
    }
    TRY(file_resolve(set->adapter->root(set), place.path, path, sizeof(path)));
    arena_init(&memory, 0);
    status st =
        file_read_piece(path, place.offset, place.bytes, INT64_MAX, &memory, &bytes, &mtime_ns);
    if (st == ST_OK)
        *out = hash_bytes(bytes.data, bytes.size);
    arena_done(&memory);
    return st;
}

typedef struct hash_count {
    int64_t done, failed;
} hash_count;

static status hash_images(const conf *options, hash_count *out)
{
    dataset *set = NULL;
    TRY(dataset_open(options, &set));
    for (int64_t j = 0; j < set->adapter->images(set); j++) {
        char text[HASH_TEXT] = "-";
        hash128 digest;
        if (interrupt_heard())
            break;
        const bool hashed = hash_image(set, j, &digest) == ST_OK;
        if (hashed)
            hash_print(digest, text);
        out->done += hashed;
        out->failed += !hashed;
        printf("hash\t%s\t%s\n", text, escape_text(set->adapter->image_path(set, j)).text);
    }
    dataset_close(&set);
    return ST_OK;
}

status verb_check(int argc, char **argv)
{
    conf options;
    char **args;
    int n_args;
    child_daemon daemon = {0};
    client *rows = NULL;
    json_value *welcome = NULL;
    status st = ST_OK;
    int64_t bad = 0, seen = 0, damaged = 0;
    hash_count hashed = {0};
    const bool hash = verb_take_flag(&argc, argv, "--hash");
    TRY(verb_conf(argc, argv, verb_needs_rows, &options, &args, &n_args));
    TRY_OR(done, child_start(&options, args, n_args, &daemon));
    TRY_OR(done, child_open(&daemon, "sample", 0, options.prepd_ahead_bytes, &rows));
    const char *text = client_welcome(rows);
    TRY_OR(done, json_parse(text, strlen(text), "welcome", &welcome));
    TRY_OR(done, check_rows(rows, json_int(json_find(welcome, "samples"), 0), &bad, &seen));
    TRY_OR(done, list_damaged(daemon.endpoint, &damaged));
    if (hash)
        TRY_OR(done, hash_images(&options, &hashed));
    printf("checked %lld samples, %lld bad", (long long)seen, (long long)bad);
    if (damaged > 0)
        printf(", %lld pictures damaged but used (data.damaged accept)", (long long)damaged);
    if (hash)
        printf(", %lld files hashed", (long long)hashed.done);
    if (hashed.failed > 0)
        printf(", %lld could not be hashed", (long long)hashed.failed);
    printf("\n");
    if (bad > 0)
        st = FAIL(ST_BAD_INPUT,
                  "%lld of %lld samples cannot be used; they are listed on standard output",
                  (long long)bad, (long long)seen);
done:;
    status_note note = *status_last();
    json_free(&welcome);
    child_stop(&daemon, &rows, &note);
    free(args);
    conf_done(&options);
    status_set(&note);
    return st;
}
