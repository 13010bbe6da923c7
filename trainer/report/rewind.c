/* SPDX-License-Identifier: Apache-2.0 */
/* rewind.c: reads the file once to decide which lines stay, copies the others to the set-aside
 * file, syncs it, and then replaces the file by a rename. */
#include "trainer/report/rewind.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/json/json.h"

/* Whether a line stays in the file. */
typedef struct verdict {
    int64_t step; /* -1: the line has no step, or was cut short */
    bool stays;
} verdict;

typedef struct verdicts {
    verdict *list;
    int64_t count, capacity;
    int64_t go;   /* how many lines do not stay */
    bool unended; /* the last line has no newline */
} verdicts;

static int64_t step_of(const char *line, size_t size, const char *path)
{
    json_value *value = NULL;
    if (json_parse(line, size, path, &value) != ST_OK) {
        status_clear(); /* a line that was cut short */
        return -1;
    }
    const int64_t step = json_int(json_find(value, "step"), -1);
    json_free(&value);
    return step >= 0 ? step : -1;
}

static status add_verdict(verdicts *judged, int64_t step)
{
    if (judged->count == judged->capacity) {
        const int64_t capacity = judged->capacity ? 2 * judged->capacity : 1024;
        verdict *more = realloc(judged->list, (size_t)capacity * sizeof *more);
        if (!more)
            return FAIL(ST_NO_MEMORY, "no memory for %lld lines", (long long)capacity);
        judged->list = more;
        judged->capacity = capacity;
    }
    judged->list[judged->count++] = (verdict){.step = step};
    return ST_OK;
}

/* Decides from the end of the file: a line stays if its step is at most `step` and no later line
 * has the same step or a lower one. */
static void decide(verdicts *judged, int64_t step)
{
    int64_t below = INT64_MAX;
    for (int64_t i = judged->count - 1; i >= 0; i--) {
        verdict *line = &judged->list[i];
        if (line->step >= 0 && line->step < below) {
            below = line->step;
            line->stays = line->step <= step;
        }
        judged->go += !line->stays;
    }
}

static status read_verdicts(FILE *file, const char *path, int64_t step, verdicts *out)
{
    char *line = NULL;
    size_t room = 0;
    status st = ST_OK;
    for (ssize_t size; st == ST_OK && (size = getline(&line, &room, file)) > 0;) {
        out->unended = line[size - 1] != '\n';
        st = add_verdict(out, step_of(line, (size_t)size, path));
    }
    free(line);
    if (st == ST_OK && ferror(file))
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    decide(out, step);
    return st;
}

/* Copies the lines of `file` whose verdict is `stays`, each ended by a newline. */
static status copy_lines(FILE *file, const char *path, const verdicts *judged, bool stays, FILE *to)
{
    char *line = NULL;
    size_t room = 0;
    bool ok = fseeko(file, 0, SEEK_SET) == 0;
    for (int64_t i = 0; i < judged->count && ok; i++) {
        const ssize_t size = getline(&line, &room, file);
        ok = size > 0;
        if (!ok || judged->list[i].stays != stays)
            continue;
        ok = fwrite(line, 1, (size_t)size, to) == (size_t)size;
        if (ok && line[size - 1] != '\n')
            ok = fputc('\n', to) != EOF;
    }
    free(line);
    return ok ? ST_OK : FAIL_IN(ST_IO, path, "its lines cannot be copied: %s", strerror(errno));
}

/* Syncs and closes a file; st: how writing to it went so far. */
static status close_synced(FILE **file, const char *path, status st)
{
    if (st == ST_OK && (fflush(*file) != 0 || fsync(fileno(*file)) != 0))
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    if (fclose(*file) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    *file = NULL;
    return st;
}

/* Appends the lines that do not stay to the set-aside file. */
static status set_aside(FILE *file, const char *path, const verdicts *judged, const char *aside)
{
    FILE *to = fopen(aside, "a+e");
    if (!to)
        return FAIL_IN(ST_IO, aside, "%s", strerror(errno));
    status st = ST_OK;
    if (fseek(to, -1, SEEK_END) == 0 && fgetc(to) != '\n') /* an earlier process died right here */
        st = fseek(to, 0, SEEK_END) == 0 && fputc('\n', to) != EOF
                 ? ST_OK
                 : FAIL_IN(ST_IO, aside, "%s", strerror(errno));
    if (st == ST_OK)
        st = copy_lines(file, path, judged, false, to);
    return close_synced(&to, aside, st);
}

/* Replaces the file by the lines that stay. */
static status replace(FILE *file, const char *path, const verdicts *judged, const char *temp)
{
    FILE *to = fopen(temp, "we");
    if (!to)
        return FAIL_IN(ST_IO, temp, "%s", strerror(errno));
    status st = close_synced(&to, temp, copy_lines(file, path, judged, true, to));
    if (st == ST_OK && rename(temp, path) != 0)
        st = FAIL_IN(ST_IO, path, "rename: %s", strerror(errno));
    if (st != ST_OK)
        unlink(temp);
    return st;
}

static status rewind_file(FILE *file, const char *folder, const char *name, const char *path,
                          int64_t step, verdicts *judged)
{
    char aside[STATUS_PATH_MAX], temp[STATUS_PATH_MAX];
    if (snprintf(aside, sizeof aside, "%s/set-aside-%s", folder, name) >= STATUS_PATH_MAX ||
        snprintf(temp, sizeof temp, "%s/.%s.tmp", folder, name) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, folder, "the path is too long");
    TRY(read_verdicts(file, path, step, judged));
    if (judged->go == 0 && !judged->unended)
        return ST_OK;
    if (judged->go > 0)
        TRY(set_aside(file, path, judged, aside));
    TRY(replace(file, path, judged, temp));
    return file_sync_folder(folder);
}

status rewind_lines(const char *folder, const char *name, int64_t step, int64_t *out_set_aside)
{
    char path[STATUS_PATH_MAX];
    verdicts judged = {0};
    *out_set_aside = 0;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CANT_CREATE, folder, "the path is too long");
    FILE *file = fopen(path, "re");
    if (!file && errno == ENOENT)
        return ST_OK;
    if (!file)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    status st = rewind_file(file, folder, name, path, step, &judged);
    fclose(file);
    if (st == ST_OK)
        *out_set_aside = judged.go;
    free(judged.list);
    return st;
}
