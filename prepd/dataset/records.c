/* SPDX-License-Identifier: Apache-2.0 */
/* records.c: finds the files of records, scans them (records.h for lines, json.h for arrays) and
 * reads single records again. Which files a folder has for a data set is decided in find_in_folder.
 */
#include "prepd/dataset/records.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/utf8.h"
#include "common/program/log.h"
#include "prepd/dataset/tables.h"

enum {
    PATH_BYTES = 4096,
    AWAKE = 4,            /* how many files may be open, each with a decoder */
    PEEK_BYTES = 1 << 16, /* the beginning of a file, which tells whether it holds JSON */
    QUOTED = 40,          /* bytes of a file that a message quotes */
    FAR_BYTES = 64 << 20, /* restart points so far apart are worth a warning; see warn_if_far */
};

typedef struct record_file {
    char *path;
    unpack *bytes;
    int64_t first_point; /* how many restart points the files before it have */
} record_file;

struct record_files {
    char folder[PATH_BYTES];
    record_file *files;
    int64_t count, capacity;
    record_form form;
    bool of_texts;        /* data.format is text */
    int32_t awake[AWAKE]; /* [n_awake] the open files, the one that was read last first */
    int n_awake;
    char *text; /* of the record read last */
    size_t text_capacity;
};

static const char *const JSON_SUFFIXES[] = {".jsonl",   ".json",      ".ndjson",   ".jsonl.gz",
                                            ".json.gz", ".jsonl.zst", ".json.zst", NULL};
static const char *const TEXT_SUFFIXES[] = {".txt", ".txt.gz", ".txt.zst", NULL};

/* The length of the name without one of these suffixes; 0 if it has none of them. */
static size_t stem_of(const char *name, const char *const *suffixes)
{
    size_t length = strlen(name);
    for (; *suffixes; suffixes++) {
        size_t suffix = strlen(*suffixes);
        if (length > suffix && strcmp(name + length - suffix, *suffixes) == 0)
            return length - suffix;
    }
    return 0;
}

static status add_file(record_files *files, const char *path)
{
    TRY(array_room((void **)&files->files, files->count, &files->capacity, sizeof *files->files));
    record_file *file = &files->files[files->count++];
    *file = (record_file){.path = strdup(path)};
    if (!file->path)
        return FAIL(ST_NO_MEMORY, "no memory for a path");
    if (files->count > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, files->folder, "it holds more than %d files", INT32_MAX);
    TRY(unpack_open(path, &file->bytes));
    unpack_rest(file->bytes); /* of many files only those that are read are open */
    return ST_OK;
}

static int by_path(const void *left, const void *right)
{
    return strcmp(((const record_file *)left)->path, ((const record_file *)right)->path);
}

/* What a folder holds, by the names of its files. */
typedef struct folder_names {
    int64_t json;        /* files with a suffix of JSON */
    int64_t texts;       /* .txt files */
    int64_t of_split[2]; /* .txt files with data.split, with eval.split in their names */
    char others[512];    /* files of JSON that are not of data.split */
} folder_names;

/* A hidden file, such as those that other systems leave behind, is no document. */
static bool is_document(const char *name)
{
    return name[0] != '.' && stem_of(name, TEXT_SUFFIXES) > 0;
}

/* Adds the files of one kind in the folder: of JSON those of data.split, of .txt all. */
static status add_files(const conf *options, record_files *files, DIR *dir, bool of_json,
                        folder_names *names)
{
    rewinddir(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[2 * PATH_BYTES];
        const char *name = entry->d_name;
        const size_t stem = stem_of(name, of_json ? JSON_SUFFIXES : TEXT_SUFFIXES);
        const size_t used = strlen(names->others);
        if (!stem || (!of_json && !is_document(name)))
            continue;
        snprintf(path, sizeof path, "%s/%s", files->folder, name);
        names->json += of_json;
        names->texts += !of_json;
        if (!of_json) {
            names->of_split[0] += name_has_split(name, stem, options->data_split);
            names->of_split[1] += name_has_split(name, stem, options->eval_split);
        }
        if (!of_json || name_has_split(name, stem, options->data_split))
            TRY(add_file(files, path));
        else if (used < sizeof names->others - 64)
            snprintf(names->others + used, sizeof names->others - used, "%s%.60s", used ? ", " : "",
                     name);
    }
    return ST_OK;
}

/* All .txt files are taken. Where only some of their names mention a split, those were probably
 * meant to be kept apart, so the folder is refused. */
static status check_no_split(const conf *options, const record_files *files,
                             const folder_names *names)
{
    const char *const splits[] = {options->data_split, options->eval_split};
    for (int k = 0; k < 2; k++)
        if (names->of_split[k] > 0 && names->of_split[k] < names->texts)
            return FAIL_IN(
                ST_CONFIG, files->folder,
                "%lld of the %lld .txt files have \"%s\" in their names, but a folder of "
                ".txt files has no splits: every file is a document. Put the files of each "
                "split into a folder of their own (data.path, eval.path)",
                (long long)names->of_split[k], (long long)names->texts, splits[k]);
    return ST_OK;
}

/* The files of JSON that data.split names; if there is no file of JSON at all, the .txt files, if
 * data.format takes them. */
static status find_in_folder(const conf *options, record_files *files)
{
    folder_names names = {0};
    DIR *dir = opendir(files->folder);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, files->folder, "data.path cannot be read as a folder: %s",
                       strerror(errno));
    status st = add_files(options, files, dir, true, &names);
    if (st == ST_OK && names.json == 0 && files->of_texts)
        st = add_files(options, files, dir, false, &names);
    closedir(dir);
    TRY(st);
    if (files->count == 0)
        return FAIL_IN(
            ST_NO_INPUT, files->folder,
            "the folder holds no file for data.split \"%s\" (NAME-%s.jsonl, .json, .jsonl.gz, "
            ".jsonl.zst, ...)%s%s%s; data.path may also name one file",
            options->data_split, options->data_split, files->of_texts ? " and no .txt file" : "",
            names.others[0] ? "; it holds: " : "", names.others);
    if (names.texts > 0)
        files->form = RECORDS_FILES;
    TRY(check_no_split(options, files, &names));
    qsort(files->files, (size_t)files->count, sizeof *files->files, by_path);
    return ST_OK;
}

bool records_have_splits(const conf *options)
{
    bool json = false, texts = false;
    DIR *dir = opendir(options->data_path);
    if (!dir)
        return false;
    for (struct dirent *entry; conf_is_plain_text(options) && (entry = readdir(dir));) {
        json = json || stem_of(entry->d_name, JSON_SUFFIXES) > 0;
        texts = texts || is_document(entry->d_name);
    }
    closedir(dir);
    return json || !texts;
}

status records_open(const conf *options, record_files **out)
{
    struct stat info;
    status st;
    record_files *files = (record_files *)calloc(1, sizeof *files);
    if (!files)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    files->of_texts = conf_is_plain_text(options);
    if (stat(options->data_path, &info) != 0) {
        st = FAIL_IN(ST_NO_INPUT, options->data_path, "data.path cannot be read: %s",
                     strerror(errno));
        goto failed;
    }
    if (snprintf(files->folder, sizeof files->folder, "%s", options->data_path) >=
        (int)sizeof files->folder) {
        st = FAIL_IN(ST_CONFIG, options->data_path, "data.path is too long");
        goto failed;
    }
    if (S_ISDIR(info.st_mode)) {
        TRY_OR(failed, find_in_folder(options, files));
    } else {
        TRY_OR(failed, add_file(files, options->data_path));
        char *slash = strrchr(files->folder, '/');
        if (slash)
            slash[slash == files->folder] = 0;
        if (files->of_texts && stem_of(records_name(files, 0), TEXT_SUFFIXES) > 0)
            files->form = RECORDS_BLOCKS;
    }
    *out = files;
    return ST_OK;
failed:
    records_close(&files);
    return st;
}

void records_close(record_files **files)
{
    if (!files || !*files)
        return;
    for (int64_t k = 0; k < (*files)->count; k++) {
        unpack_close(&(*files)->files[k].bytes);
        free((*files)->files[k].path);
    }
    free((*files)->files);
    free((*files)->text);
    free(*files);
    *files = NULL;
}

record_form records_form(const record_files *files)
{
    return files->form;
}

const char *records_folder(const record_files *files)
{
    return files->folder;
}

const char *records_name(const record_files *files, int32_t file)
{
    const char *path = files->files[file].path, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

typedef struct scanning {
    record_files *files;
    int32_t file;
    record_each each;
    void *user;
    int64_t before; /* bytes of the file that were skipped; offsets are counted after them */
} scanning;

static status on_item(void *user, const json_value *value, const json_place *at)
{
    scanning *scan = (scanning *)user;
    record_place place = {
        .offset = scan->before + at->offset, .line = at->line, .file = scan->file};
    char cause[512];
    if (value && json_typeof(value) == JSON_OBJECT) {
        place.bytes = (int32_t)at->bytes;
        return scan->each(scan->user, value, &place, NULL);
    }
    if (!value)
        snprintf(cause, sizeof cause,
                 "%.200s:%lld: a record of %lld bytes is too large; it may have %d bytes and about "
                 "%d values",
                 records_name(scan->files, scan->file), (long long)at->line, (long long)at->bytes,
                 RECORD_BYTES, JSON_ITEM_VALUES);
    else
        snprintf(cause, sizeof cause, "%.200s:%lld: expected an object, found %s",
                 records_name(scan->files, scan->file), (long long)at->line,
                 json_type_name(json_typeof(value)));
    return scan->each(scan->user, NULL, &place, cause);
}

static status on_line(void *user, span line, const line_place *at)
{
    scanning *scan = (scanning *)user;
    record_place place = {.offset = at->offset, .line = at->line, .file = scan->file};
    const char *name = records_name(scan->files, scan->file);
    char cause[STATUS_MESSAGE_MAX + 256];
    json_value *value = NULL;
    if (!line.data) {
        snprintf(cause, sizeof cause, "%.200s:%lld: the line is longer than %d bytes", name,
                 (long long)at->line, RECORD_BYTES);
        return scan->each(scan->user, NULL, &place, cause);
    }
    if (line_is_blank(line))
        return ST_OK;
    status st = json_parse((const char *)line.data, line.size, name, &value);
    if (st != ST_OK && st != ST_BAD_INPUT)
        return st;
    if (st != ST_OK) {
        snprintf(cause, sizeof cause, "%.200s:%lld: %s", name, (long long)at->line,
                 status_last()->message);
        return scan->each(scan->user, NULL, &place, cause);
    }
    const json_place where = {at->offset, (int64_t)line.size, at->line};
    st = on_item(scan, value, &where);
    json_free(&value);
    return st;
}

/* How a file begins. */
typedef struct beginning {
    int64_t mark;            /* bytes of a byte order mark; 0 if it has none */
    bool array;              /* the first character is a bracket, so the file is one array */
    bool foreign;            /* no line begins as JSON does */
    char quoted[QUOTED + 1]; /* how it begins */
} beginning;

/* Copies the beginning of a line, without half a character at its end. */
static void quote(span line, char out[QUOTED + 1])
{
    size_t count = 0;
    while (count < line.size && line.data[count] != '\r') {
        const size_t length = utf8_length(line.data + count, line.size - count);
        if (count + (length ? length : 1) > QUOTED)
            break;
        count += length ? length : 1;
    }
    memcpy(out, line.data, count);
    out[count] = 0;
}

/* Looks at the lines of a beginning: a record and an array begin with a brace or a bracket. A
 * single line that does not is one bad record, but if no line does the file is something else. */
static void look_at_lines(span head, beginning *out)
{
    bool first = true;
    for (size_t at = 0; at < head.size;) {
        const uint8_t *end = (const uint8_t *)memchr(head.data + at, '\n', head.size - at);
        const size_t stop = end ? (size_t)(end - head.data) : head.size;
        const span line = span_of(head.data + at, stop - at);
        at = stop + 1;
        if (line_is_blank(line))
            continue;
        size_t skip = 0;
        while (strchr(" \t", line.data[skip]) && line.data[skip])
            skip++;
        const bool brace = line.data[skip] == '{', bracket = line.data[skip] == '[';
        if (first) {
            out->array = bracket;
            quote(line, out->quoted);
        }
        out->foreign = !brace && !bracket;
        if (!out->foreign)
            return;
        first = false;
    }
}

static status peek_beginning(unpack *bytes, beginning *out)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf};
    size_t count;
    uint8_t *head = (uint8_t *)malloc(PEEK_BYTES);
    *out = (beginning){0};
    status st = head ? unpack_peek(bytes, head, PEEK_BYTES, &count)
                     : FAIL(ST_NO_MEMORY, "no memory for a read buffer");
    if (st == ST_OK) {
        if (count >= sizeof mark && memcmp(head, mark, sizeof mark) == 0)
            out->mark = sizeof mark;
        look_at_lines(span_of(head + out->mark, count - (size_t)out->mark), out);
    }
    free(head);
    return st;
}

static status not_json(const record_files *files, const record_file *file, const beginning *begins)
{
    return FAIL_IN(
        ST_BAD_INPUT, file->path,
        "it begins with \"%s\", which is not JSON: expected a record {..} on each line, or "
        "one array [..] of records%s",
        begins->quoted,
        files->of_texts ? ", such as {\"text\": \"A document.\"}. Plain text is read from "
                          "a file whose name ends in .txt, or from a folder of such files"
                        : " (prepd/dataset/formats.md shows examples)");
}

static status next_bytes(void *input, void *to, size_t size, size_t *out_n)
{
    return unpack_next((unpack *)input, to, size, out_n);
}

static status scan_array(record_file *file, int64_t mark, scanning *scan)
{
    uint8_t ignored[8];
    size_t count;
    scan->before = mark;
    for (int64_t left = mark; left > 0; left -= (int64_t)count)
        TRY(unpack_next(file->bytes, ignored, (size_t)left, &count));
    return json_stream_from(file->path, next_bytes, file->bytes, NULL, NULL, on_item, scan);
}

/* The samples of a window may lie anywhere between two restart points. If these are further apart
 * than what unpack.c keeps, reading a sample may mean unpacking everything before it again. */
static void warn_if_far(const record_file *file)
{
    const int64_t bytes = unpack_longest(file->bytes);
    if (bytes > FAR_BYTES)
        log_warn(
            "%s: the places where unpacking can begin are up to %lld MiB apart, so rows will wait "
            "for it. "
            "Write the file in smaller zstd frames (pzstd, or split -C 16M --filter='zstd -c >> "
            "OUT.jsonl.zst'), or as gzip",
            file->path, (long long)(bytes >> 20));
}

status records_scan(record_files *files, record_each each, void *user)
{
    int64_t points = 0;
    status st = ST_OK;
    for (int64_t k = 0; k < files->count && st == ST_OK; k++) {
        record_file *file = &files->files[k];
        scanning scan = {.files = files, .file = (int32_t)k, .each = each, .user = user};
        beginning begins;
        file->first_point = points;
        TRY(peek_beginning(file->bytes, &begins));
        if (begins.foreign)
            return not_json(files, file, &begins);
        st = begins.array ? scan_array(file, begins.mark, &scan)
                          : lines_each(file->bytes, RECORD_BYTES, on_line, &scan);
        unpack_rest(file->bytes);
        warn_if_far(file);
        points += unpack_points(file->bytes);
    }
    return st == ST_END ? ST_OK : st;
}

/* Prepares to read a file. An open file keeps a decoder and what it unpacked, so if too many are
 * open, the least recently used one is closed. */
static void wake_file(record_files *files, int32_t file)
{
    int at = 0;
    while (at < files->n_awake && files->awake[at] != file)
        at++;
    if (at == AWAKE)
        unpack_rest(files->files[files->awake[--at]].bytes);
    else if (at == files->n_awake)
        files->n_awake++;
    memmove(files->awake + 1, files->awake, (size_t)at * sizeof *files->awake);
    files->awake[0] = file;
}

status records_bytes_of(record_files *files, const record_place *at, const char **out)
{
    const size_t count = (size_t)at->bytes;
    if (count > files->text_capacity) {
        char *grown = (char *)realloc(files->text, count);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a record of %zu bytes", count);
        files->text = grown;
        files->text_capacity = count;
    }
    wake_file(files, at->file);
    TRY(unpack_at(files->files[at->file].bytes, at->offset, files->text, count));
    *out = files->text;
    return ST_OK;
}

status records_read(record_files *files, const record_place *at, json_value **out)
{
    const char *path = files->files[at->file].path, *text;
    TRY(records_bytes_of(files, at, &text));
    if (json_parse(text, (size_t)at->bytes, path, out) != ST_OK)
        return FAIL_AT(ST_BAD_INPUT, path, at->line, at->offset,
                       "the record changed while it was in use: start again");
    return ST_OK;
}

status records_contents(const record_files *files, hash128 **out)
{
    hash128 *all = (hash128 *)malloc(((size_t)files->count + 1) * sizeof *all);
    status st =
        all ? ST_OK
            : FAIL(ST_NO_MEMORY, "no memory for digests of %lld files", (long long)files->count);
    for (int64_t k = 0; st == ST_OK && k < files->count; k++)
        st = hash_file(files->files[k].path, &all[k]);
    if (st == ST_OK)
        *out = all;
    else
        free(all);
    return st;
}

status records_digest(const record_files *files, hasher *hash)
{
    hash128 *all = NULL;
    TRY(records_contents(files, &all));
    hasher_add_u64(hash, (uint64_t)files->count);
    hasher_add(hash, all, (size_t)files->count * sizeof *all);
    free(all);
    return ST_OK;
}

void records_stamp(const record_files *files, hasher *hash)
{
    for (int64_t k = 0; k < files->count; k++) {
        int64_t bytes, mtime_ns;
        unpack_stamp(files->files[k].bytes, &bytes, &mtime_ns);
        hasher_add(hash, files->files[k].path, strlen(files->files[k].path) + 1);
        hasher_add_u64(hash, (uint64_t)bytes);
        hasher_add_u64(hash, (uint64_t)mtime_ns);
    }
}

int64_t records_unpacked(const record_files *files)
{
    int64_t bytes = 0;
    for (int64_t k = 0; k < files->count; k++) {
        const int64_t one = unpack_total(files->files[k].bytes);
        if (one < 0)
            return -1;
        bytes += one;
    }
    return bytes;
}

int64_t records_bytes(const record_files *files)
{
    int64_t sum = 0;
    for (int64_t k = 0; k < files->count; k++) {
        int64_t bytes, mtime_ns;
        unpack_stamp(files->files[k].bytes, &bytes, &mtime_ns);
        sum += bytes;
    }
    return sum;
}

int64_t records_count(const record_files *files)
{
    return files->count;
}

unpack *records_unpack(const record_files *files, int64_t file)
{
    return files->files[file].bytes;
}

void records_adopted(record_files *files)
{
    int64_t points = 0;
    for (int64_t k = 0; k < files->count; k++) {
        files->files[k].first_point = points;
        unpack_rest(files->files[k].bytes);
        warn_if_far(&files->files[k]);
        points += unpack_points(files->files[k].bytes);
    }
}

bool records_random(const record_files *files)
{
    for (int64_t k = 0; k < files->count; k++)
        if (!unpack_random(files->files[k].bytes))
            return false;
    return true;
}

int64_t records_chunk(const record_files *files, const record_place *at)
{
    const record_file *file = &files->files[at->file];
    int64_t low = 0, high = unpack_points(file->bytes);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (unpack_point(file->bytes, middle) <= at->offset)
            low = middle;
        else
            high = middle;
    }
    return file->first_point + low;
}
