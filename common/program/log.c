/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: formats events as plain lines or as JSON objects and writes them.
 *
 * An event arrives as one text. In JSON its trailing key=value words become a field each, so they
 * have to be found again in the text, and a value that comes from outside must not be able to forge
 * a field. */
#include "common/program/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/words.h"
#include "common/json/json.h"
#include "common/program/bar.h"

enum {
    ROLE_MAX = 64,
    TEXT_MAX = STATUS_MESSAGE_MAX + STATUS_PATH_MAX + 512,
    FIELDS_MAX = 64,
    KEY_MAX = 64,
};

/* The log of the process. main sets it before threads start; after that only the atomics change. */
static struct {
    char role[ROLE_MAX];
    _Atomic int level;
    bool json;
    int stderr_level;
    _Atomic bool hushed; /* nothing goes to stderr */
} state = {.role = "", .level = LOG_INFO, .json = false, .stderr_level = LOG_DEBUG};

static const char *const level_name[] = {"error", "warn", "info", "debug"};

void log_init(const char *role, int level, bool json)
{
    snprintf(state.role, sizeof state.role, "%s", role);
    state.level = level;
    state.json = json;
    if (json)
        bar_set_rule(BAR_PLAIN);
}

void log_set_level(int level)
{
    state.level = level;
}

void log_hush(bool hushed)
{
    state.hushed = hushed;
}

bool log_on(int level)
{
    return level <= state.level;
}

static void write_line(int level, const char *line, size_t size)
{
    if (level <= state.stderr_level && !state.hushed)
        bar_write_line(line, size);
    log_file_write(line, size);
}

status log_keep(const char *path, int64_t limit_bytes, int stderr_level)
{
    TRY(log_file_open(path, limit_bytes));
    state.stderr_level = stderr_level;
    return ST_OK;
}

static void event_plain(int level, const struct tm *utc, const char *text)
{
    char line[2 * TEXT_MAX + ROLE_MAX];
    int length = snprintf(line, sizeof line, "%02d:%02d:%02d %-5s %s%s", utc->tm_hour, utc->tm_min,
                          utc->tm_sec, level_name[level], state.role, state.role[0] ? ": " : "");
    size_t size =
        (size_t)length + visible_copy(line + length, sizeof line - (size_t)length - 1, text);
    line[size++] = '\n';
    write_line(level, line, size);
}

/* The length of the key if the word has the form key=value, else 0. */
static size_t key_length(const char *word)
{
    size_t count = 0;
    while (islower((unsigned char)word[count]) || isdigit((unsigned char)word[count]) ||
           word[count] == '_')
        count++;
    return word[count] == '=' && count > 0 && count < KEY_MAX ? count : 0;
}

typedef struct field {
    const char *key, *value; /* the value without its quotes */
    size_t key_size, size;
    bool quoted;
} field;

typedef struct fields {
    field list[FIELDS_MAX];
    int count;
} fields;

static bool is_new_key(const fields *line, const char *word)
{
    const size_t size = key_length(word);
    for (int i = 0; i < line->count; i++)
        if (line->list[i].key_size == size && memcmp(line->list[i].key, word, size) == 0)
            return false;
    return size > 0;
}

/* Finds the quote that ends a value that begins at `value`; NULL if there is none. The value may
 * contain quotes itself. So the closing quote is the one that is the last byte of the text or is
 * followed by another field. A key that was seen before does not count, because the value could
 * contain it to forge a field. */
static const char *closing_quote(const fields *line, const char *value)
{
    for (; *value; value++) {
        if (*value == '"' && (!value[1] || (value[1] == ' ' &&
                                            is_new_key(line, value + 1 + strspn(value + 1, " ")))))
            return value;
        if (*value == '\\' && value[1] &&
            value[2]) /* the last quote closes the value even after a backslash */
            value++;
    }
    return NULL;
}

/* Reads the field that begins at `word` and returns its end; NULL if there is no field. */
static const char *read_field(fields *line, const char *word)
{
    if (line->count == FIELDS_MAX || !is_new_key(line, word))
        return NULL;
    field *entry = &line->list[line->count++];
    entry->key = word;
    entry->key_size = key_length(word);
    entry->value = word + entry->key_size + 1;
    entry->quoted = *entry->value == '"';
    entry->value += entry->quoted;
    const char *end = entry->quoted ? closing_quote(line, entry->value)
                                    : entry->value + strcspn(entry->value, " \"");
    if (!end || (!entry->quoted && *end == '"'))
        return NULL;
    entry->size = (size_t)(end - entry->value);
    return end + entry->quoted;
}

/* Whether the text consists of fields only; reads them into `line`. */
static bool read_fields(fields *line, const char *text)
{
    line->count = 0;
    while (text && *text) {
        text = read_field(line, text);
        text = text && (*text == ' ' || !*text) ? text + strspn(text, " ") : NULL;
    }
    if (!text)
        line->count = 0;
    return text != NULL;
}

/* The start of the key=value words at the end of the text, or the text's end if there are none. */
static const char *fields_start(const char *text, fields *line)
{
    while (*text && !read_fields(line, text)) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return text;
}

/* Writes a quoted value without the backslashes before quotes and backslashes. */
static void put_quoted(json_writer *writer, const char *value, size_t size)
{
    char text[TEXT_MAX];
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        i += value[i] == '\\' && i + 1 < size && strchr("\\\"", value[i + 1]);
        text[count++] = value[i];
    }
    json_put_text(writer, text, count);
}

static void put_field_value(json_writer *writer, const char *value, size_t size)
{
    char number[48], *end = NULL;
    if (size > 0 && size < sizeof number && (isdigit((unsigned char)value[0]) || value[0] == '-')) {
        memcpy(number, value, size);
        number[size] = 0;
        double real = strtod(number, &end);
        if (!*end && !strpbrk(number, "xX") && strspn(number, "-0123456789") == size && size < 18) {
            json_put_int(writer, strtoll(number, NULL, 10));
            return;
        }
        if (!*end && !strpbrk(number, "xXiInN")) {
            json_put_real(writer, real);
            return;
        }
    }
    json_put_text(writer, value, size);
}

static void event_json(int level, const struct timespec *now, const char *text)
{
    struct tm utc;
    char stamp[64];
    gmtime_r(&now->tv_sec, &utc);
    size_t count = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + count, sizeof stamp - count, ".%03ldZ", now->tv_nsec / 1000000);
    fields list = {.count = 0};
    size_t event = (size_t)(fields_start(text, &list) - text);
    while (event > 0 && text[event - 1] == ' ')
        event--;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "time", stamp);
    json_put_key_cstr(&writer, "level", level_name[level]);
    json_put_key_cstr(&writer, "role", state.role);
    json_put_key_int(&writer, "pid", getpid());
    json_put_key_text(&writer, "event", text, event);
    if (list.count) { /* in an object of their own, because a field can be named "time" too */
        json_begin_key_object(&writer, "fields");
        for (const field *entry = list.list; entry < list.list + list.count; entry++) {
            char name[KEY_MAX];
            snprintf(name, sizeof name, "%.*s", (int)entry->key_size, entry->key);
            json_put_key(&writer, name);
            if (entry->quoted)
                put_quoted(&writer, entry->value, entry->size);
            else
                put_field_value(&writer, entry->value, entry->size);
        }
        json_end_object(&writer);
    }
    json_end_object(&writer);
    char *line = NULL;
    size_t size = 0;
    if (json_writer_take(&writer, &line, &size) != ST_OK)
        return;
    line[size] = '\n'; /* in place of the terminator */
    write_line(level, line, size + 1);
    free(line);
}

void log_event(int level, const char *fmt, ...)
{
    if (!log_on(level))
        return;
    char text[TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    if (state.json)
        event_json(level, &now, text);
    else
        event_plain(level, &local, text);
}

void log_status(void)
{
    const status_note *note = status_last();
    log_error("%s", status_text());
    log_debug("raised code=%s source=%s:%d", status_name(note->code),
              note->source ? note->source : "?", note->source_line);
}

static struct {
    pthread_mutex_t lock;
    int fd;
    int64_t limit, size; /* of the open file */
    char path[STATUS_PATH_MAX];
} file = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static int open_path(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void take_file(int fd)
{
    struct stat now;
    if (fd < 0)
        return;
    if (file.fd >= 0)
        close(file.fd);
    file.fd = fd;
    file.size = fstat(fd, &now) == 0 ? now.st_size : 0;
}

static bool is_moved(void)
{
    struct stat ours, there;
    return fstat(file.fd, &ours) == 0 &&
           (stat(file.path, &there) != 0 || ours.st_ino != there.st_ino ||
            ours.st_dev != there.st_dev);
}

/* Writes the name of the file that was the open one `age` renames ago. */
static void name_of(int age, char out[STATUS_PATH_MAX + 16])
{
    snprintf(out, STATUS_PATH_MAX + 16, age ? "%s.%d" : "%s", file.path, age);
}

static void begin_anew(void)
{
    char from[STATUS_PATH_MAX + 16], to[STATUS_PATH_MAX + 16];
    for (int age = LOG_FILE_KEPT; age > 0; age--) {
        name_of(age - 1, from);
        name_of(age, to);
        (void)rename(from, to);
    }
    file.size = 0;
    if (is_moved())
        take_file(open_path(file.path));
}

status log_file_open(const char *path, int64_t limit)
{
    if (strlen(path) >= sizeof file.path)
        return FAIL_IN(ST_CANT_CREATE, path, "the path is too long");
    const int fd = open_path(path);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot open the log file: %s", strerror(errno));
    strcpy(file.path, path);
    file.limit = limit;
    take_file(fd);
    return ST_OK;
}

void log_file_write(const char *line, size_t size)
{
    pthread_mutex_lock(&file.lock);
    if (file.fd >= 0) {
        if (is_moved())
            take_file(open_path(file.path));
        if (file.limit > 0 && file.size > 0 && file.size + (int64_t)size > file.limit)
            begin_anew();
        (void)!file_write_all(file.fd, line, size);
        file.size += (int64_t)size;
    }
    pthread_mutex_unlock(&file.lock);
}
