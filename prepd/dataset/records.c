/* records.c: finds the files of records, scans them (lines.h for lines, json.h for arrays) and
 * reads single records again. */
#include "prepd/dataset/records.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/program/log.h"
#include "prepd/dataset/lines.h"
#include "prepd/dataset/names.h"
#include "prepd/dataset/tables.h"

enum {
    PATH_BYTES = 4096,
    AWAKE = 4,            /* how many files may be open, each with a decoder */
    FAR_BYTES = 64 << 20, /* restart points so far apart are worth a warning; see warn_if_far */
};

typedef struct record_file {
    char *path;
    unpack *bytes;
    int64_t first_point; /* how many restart points the files before it have */
    uint64_t used;       /* the clock when it was read last; 0: it is closed */
} record_file;

struct record_files {
    char folder[PATH_BYTES];
    record_file *files;
    int64_t n, capacity;
    uint64_t clock; /* counts calls of records_read */
    char *text;     /* of the record read last */
    size_t text_capacity;
};

static const char *const SUFFIXES[] = {".jsonl",   ".json",      ".ndjson",  ".jsonl.gz",
                                       ".json.gz", ".jsonl.zst", ".json.zst"};

/* The length of the name without one of these suffixes; 0 if it has none of them. */
static size_t stem_of(const char *name)
{
    size_t n = strlen(name);
    for (size_t k = 0; k < sizeof SUFFIXES / sizeof *SUFFIXES; k++) {
        size_t m = strlen(SUFFIXES[k]);
        if (n > m && strcmp(name + n - m, SUFFIXES[k]) == 0)
            return n - m;
    }
    return 0;
}

static status add_file(record_files *files, const char *path)
{
    TRY(array_room((void **)&files->files, files->n, &files->capacity, sizeof *files->files));
    record_file *x = &files->files[files->n++];
    *x = (record_file){.path = strdup(path)};
    if (!x->path)
        return FAIL(ST_NO_MEMORY, "no memory for a path");
    if (files->n > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, files->folder, "it holds more than %d files", INT32_MAX);
    return unpack_open(path, &x->bytes);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const record_file *)a)->path, ((const record_file *)b)->path);
}

static status find_in_folder(const conf *c, record_files *files)
{
    char others[512] = "";
    status st = ST_OK;
    DIR *dir = opendir(files->folder);
    struct dirent *entry;
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, files->folder, "data.path cannot be read as a folder: %s",
                       strerror(errno));
    while (st == ST_OK && (entry = readdir(dir))) {
        char path[2 * PATH_BYTES];
        size_t stem = stem_of(entry->d_name), used = strlen(others);
        if (!stem)
            continue;
        snprintf(path, sizeof path, "%s/%s", files->folder, entry->d_name);
        if (name_has_split(entry->d_name, stem, c->data_split))
            st = add_file(files, path);
        else if (used < sizeof others - 64)
            snprintf(others + used, sizeof others - used, "%s%.60s", used ? ", " : "",
                     entry->d_name);
    }
    closedir(dir);
    TRY(st);
    if (files->n == 0)
        return FAIL_IN(
            ST_NO_INPUT, files->folder,
            "the folder holds no file for data.split \"%s\" (NAME-%s.jsonl, .json, .jsonl.gz, "
            ".jsonl.zst, ...)%s%s; data.path may also name one file",
            c->data_split, c->data_split, others[0] ? "; it holds: " : "", others);
    qsort(files->files, (size_t)files->n, sizeof *files->files, by_path);
    return ST_OK;
}

status records_open(const conf *c, record_files **out)
{
    struct stat info;
    status st;
    record_files *files = (record_files *)calloc(1, sizeof *files);
    if (!files)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    if (stat(c->data_path, &info) != 0) {
        st = FAIL_IN(ST_NO_INPUT, c->data_path, "data.path cannot be read: %s", strerror(errno));
        goto failed;
    }
    if (snprintf(files->folder, sizeof files->folder, "%s", c->data_path) >=
        (int)sizeof files->folder) {
        st = FAIL_IN(ST_CONFIG, c->data_path, "data.path is too long");
        goto failed;
    }
    if (S_ISDIR(info.st_mode)) {
        TRY_OR(failed, find_in_folder(c, files));
    } else {
        TRY_OR(failed, add_file(files, c->data_path));
        char *slash = strrchr(files->folder, '/');
        if (slash)
            slash[slash == files->folder] = 0;
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
    for (int64_t k = 0; k < (*files)->n; k++) {
        unpack_close(&(*files)->files[k].bytes);
        free((*files)->files[k].path);
    }
    free((*files)->files);
    free((*files)->text);
    free(*files);
    *files = NULL;
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
    scanning *s = (scanning *)user;
    record_place place = {.offset = s->before + at->offset, .line = at->line, .file = s->file};
    char cause[512];
    if (value && json_typeof(value) == JSON_OBJECT) {
        place.bytes = (int32_t)at->bytes;
        return s->each(s->user, value, &place, NULL);
    }
    if (!value)
        snprintf(cause, sizeof cause,
                 "%.200s:%lld: a record of %lld bytes is too large; it may have %d bytes and about "
                 "%d values",
                 records_name(s->files, s->file), (long long)at->line, (long long)at->bytes,
                 RECORD_BYTES, JSON_ITEM_VALUES);
    else
        snprintf(cause, sizeof cause, "%.200s:%lld: expected an object, found %s",
                 records_name(s->files, s->file), (long long)at->line,
                 json_type_name(json_typeof(value)));
    return s->each(s->user, NULL, &place, cause);
}

static bool is_blank(span line)
{
    for (size_t i = 0; i < line.size; i++)
        if (!strchr(" \t\r", line.data[i]) || line.data[i] == 0)
            return false;
    return true;
}

static status on_line(void *user, span line, const line_place *at)
{
    scanning *s = (scanning *)user;
    record_place place = {.offset = at->offset, .line = at->line, .file = s->file};
    const char *name = records_name(s->files, s->file);
    char cause[STATUS_MESSAGE_MAX + 256];
    json_value *value = NULL;
    if (!line.data) {
        snprintf(cause, sizeof cause, "%.200s:%lld: the line is longer than %d bytes", name,
                 (long long)at->line, RECORD_BYTES);
        return s->each(s->user, NULL, &place, cause);
    }
    if (is_blank(line))
        return ST_OK;
    status st = json_parse((const char *)line.data, line.size, name, &value);
    if (st != ST_OK && st != ST_BAD_INPUT)
        return st;
    if (st != ST_OK) {
        snprintf(cause, sizeof cause, "%.200s:%lld: %s", name, (long long)at->line,
                 status_last()->message);
        return s->each(s->user, NULL, &place, cause);
    }
    const json_place where = {at->offset, (int64_t)line.size, at->line};
    st = on_item(s, value, &where);
    json_free(&value);
    return st;
}

/* How a file begins. */
typedef struct beginning {
    int64_t mark; /* bytes of a byte order mark; 0 if it has none */
    bool array;   /* the first character is a bracket, so the file is one array */
} beginning;

static status peek_beginning(unpack *bytes, beginning *out)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf};
    uint8_t head[256];
    size_t n;
    TRY(unpack_peek(bytes, head, sizeof head, &n));
    *out = (beginning){0};
    if (n >= sizeof mark && memcmp(head, mark, sizeof mark) == 0)
        out->mark = sizeof mark;
    for (size_t i = (size_t)out->mark; i < n; i++) {
        if (strchr(" \t\r\n", head[i]) && head[i])
            continue;
        out->array = head[i] == '[';
        break;
    }
    return ST_OK;
}

static status next_bytes(void *input, void *to, size_t size, size_t *out_n)
{
    return unpack_next((unpack *)input, to, size, out_n);
}

static status scan_array(record_file *x, int64_t mark, scanning *s)
{
    uint8_t ignored[8];
    size_t n;
    s->before = mark;
    for (int64_t left = mark; left > 0; left -= (int64_t)n)
        TRY(unpack_next(x->bytes, ignored, (size_t)left, &n));
    return json_stream_from(x->path, next_bytes, x->bytes, NULL, NULL, on_item, s);
}

/* The samples of a window may lie anywhere between two restart points. If that is further than what
 * unpack.c keeps, reading a sample may mean to unpack everything before it again. */
static void warn_if_far(const record_file *x)
{
    const int64_t bytes = unpack_longest(x->bytes);
    if (bytes > FAR_BYTES)
        log_warn(
            "%s: the places where unpacking can begin are up to %lld MiB apart, so rows will wait "
            "for it. "
            "Write the file in smaller zstd frames (pzstd, or split -C 16M --filter='zstd -c >> "
            "OUT.jsonl.zst'), or as gzip",
            x->path, (long long)(bytes >> 20));
}

status records_scan(record_files *files, record_each each, void *user)
{
    int64_t points = 0;
    status st = ST_OK;
    for (int64_t k = 0; k < files->n && st == ST_OK; k++) {
        record_file *x = &files->files[k];
        scanning s = {.files = files, .file = (int32_t)k, .each = each, .user = user};
        beginning begins;
        x->first_point = points;
        TRY(peek_beginning(x->bytes, &begins));
        st = begins.array ? scan_array(x, begins.mark, &s)
                          : lines_each(x->bytes, RECORD_BYTES, on_line, &s);
        unpack_rest(x->bytes);
        warn_if_far(x);
        points += unpack_points(x->bytes);
    }
    return st == ST_END ? ST_OK : st;
}

/* Prepares to read a file. An open file keeps a decoder and what it unpacked, so if too many are
 * open, the least recently used one is closed. */
static void wake_file(record_files *files, record_file *x)
{
    record_file *oldest = NULL;
    int awake = 0;
    if (x->used == 0) {
        for (int64_t k = 0; k < files->n; k++) {
            record_file *y = &files->files[k];
            awake += y->used > 0;
            if (y->used && (!oldest || y->used < oldest->used))
                oldest = y;
        }
        if (awake >= AWAKE) {
            unpack_rest(oldest->bytes);
            oldest->used = 0;
        }
    }
    x->used = ++files->clock;
}

status records_read(record_files *files, const record_place *at, json_value **out)
{
    record_file *x = &files->files[at->file];
    const size_t n = (size_t)at->bytes;
    if (n > files->text_capacity) {
        char *grown = (char *)realloc(files->text, n);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a record of %zu bytes", n);
        files->text = grown;
        files->text_capacity = n;
    }
    wake_file(files, x);
    TRY(unpack_at(x->bytes, at->offset, files->text, n));
    if (json_parse(files->text, n, x->path, out) != ST_OK)
        return FAIL_AT(ST_BAD_INPUT, x->path, at->line, at->offset,
                       "the record changed while it was in use: start again");
    return ST_OK;
}

status records_contents(const record_files *files, hash128 **out)
{
    hash128 *all = (hash128 *)malloc(((size_t)files->n + 1) * sizeof *all);
    status st =
        all ? ST_OK
            : FAIL(ST_NO_MEMORY, "no memory for digests of %lld files", (long long)files->n);
    for (int64_t k = 0; st == ST_OK && k < files->n; k++)
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
    hasher_add_u64(hash, (uint64_t)files->n);
    hasher_add(hash, all, (size_t)files->n * sizeof *all);
    free(all);
    return ST_OK;
}

void records_stamp(const record_files *files, hasher *hash)
{
    for (int64_t k = 0; k < files->n; k++) {
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
    for (int64_t k = 0; k < files->n; k++) {
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
    for (int64_t k = 0; k < files->n; k++) {
        int64_t bytes, mtime_ns;
        unpack_stamp(files->files[k].bytes, &bytes, &mtime_ns);
        sum += bytes;
    }
    return sum;
}

int64_t records_count(const record_files *files)
{
    return files->n;
}

unpack *records_unpack(const record_files *files, int64_t file)
{
    return files->files[file].bytes;
}

void records_adopted(record_files *files)
{
    int64_t points = 0;
    for (int64_t k = 0; k < files->n; k++) {
        files->files[k].first_point = points;
        unpack_rest(files->files[k].bytes);
        warn_if_far(&files->files[k]);
        points += unpack_points(files->files[k].bytes);
    }
}

bool records_random(const record_files *files)
{
    for (int64_t k = 0; k < files->n; k++)
        if (!unpack_random(files->files[k].bytes))
            return false;
    return true;
}

int64_t records_chunk(const record_files *files, const record_place *at)
{
    const record_file *x = &files->files[at->file];
    int64_t low = 0, high = unpack_points(x->bytes);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (unpack_point(x->bytes, middle) <= at->offset)
            low = middle;
        else
            high = middle;
    }
    return x->first_point + low;
}
