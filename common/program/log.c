/* log.c: formats events as plain lines or as JSON objects and writes them.
 *
 * An event arrives as one text. In JSON its trailing key=value words become a field each, so they
 * have to be found again in the text, and a value that comes from outside must not be able to forge
 * a field. */
#include "common/program/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/json/json.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/visible.h"
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
    int file, stderr_level;
    _Atomic bool hushed; /* nothing goes to stderr */
} state = {.role = "", .level = LOG_INFO, .json = false, .file = -1, .stderr_level = LOG_DEBUG};

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
    if (state.file >= 0)
        (void)!file_write_all(state.file, line, size); /* there is nowhere to report a failure */
}

status log_keep(const char *path, int stderr_level)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot open the log file: %s", strerror(errno));
    if (state.file >= 0)
        close(state.file);
    state.file = fd;
    state.stderr_level = stderr_level;
    return ST_OK;
}

static void event_plain(int level, const struct tm *t, const char *text)
{
    char line[2 * TEXT_MAX + ROLE_MAX];
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d %-5s %s%s", t->tm_hour, t->tm_min,
                     t->tm_sec, level_name[level], state.role, state.role[0] ? ": " : "");
    size_t size = (size_t)n + visible_copy(line + n, sizeof line - (size_t)n - 1, text);
    line[size++] = '\n';
    write_line(level, line, size);
}

/* The length of the key if the word has the form key=value, else 0. */
static size_t key_length(const char *word)
{
    size_t n = 0;
    while (islower((unsigned char)word[n]) || isdigit((unsigned char)word[n]) || word[n] == '_')
        n++;
    return word[n] == '=' && n > 0 && n < KEY_MAX ? n : 0;
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

static bool is_new_key(const fields *f, const char *word)
{
    const size_t size = key_length(word);
    for (int i = 0; i < f->count; i++)
        if (f->list[i].key_size == size && memcmp(f->list[i].key, word, size) == 0)
            return false;
    return size > 0;
}

/* Finds the quote that ends a value that begins at p; NULL if there is none. The value may contain
 * quotes itself. So the closing quote is the one that is the last byte of the text or is followed
 * by another field. A key that was seen before does not count, because the value could contain it
 * to forge a field. */
static const char *closing_quote(const fields *f, const char *p)
{
    for (; *p; p++) {
        if (*p == '"' && (!p[1] || (p[1] == ' ' && is_new_key(f, p + 1 + strspn(p + 1, " ")))))
            return p;
        if (*p == '\\' && p[1] && p[2]) /* the last quote closes the value even after a backslash */
            p++;
    }
    return NULL;
}

/* Reads the field that begins at `word` and returns its end; NULL if there is no field. */
static const char *read_field(fields *f, const char *word)
{
    if (f->count == FIELDS_MAX || !is_new_key(f, word))
        return NULL;
    field *x = &f->list[f->count++];
    x->key = word;
    x->key_size = key_length(word);
    x->value = word + x->key_size + 1;
    x->quoted = *x->value == '"';
    x->value += x->quoted;
    const char *end = x->quoted ? closing_quote(f, x->value) : x->value + strcspn(x->value, " \"");
    if (!end || (!x->quoted && *end == '"'))
        return NULL;
    x->size = (size_t)(end - x->value);
    return end + x->quoted;
}

/* Whether the text consists of fields only; reads them into f. */
static bool read_fields(fields *f, const char *text)
{
    f->count = 0;
    while (text && *text) {
        text = read_field(f, text);
        text = text && (*text == ' ' || !*text) ? text + strspn(text, " ") : NULL;
    }
    if (!text)
        f->count = 0;
    return text != NULL;
}

/* The start of the key=value words at the end of the text, or the text's end if there are none. */
static const char *fields_start(const char *text, fields *f)
{
    while (*text && !read_fields(f, text)) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return text;
}

/* Writes a quoted value without the backslashes before quotes and backslashes. */
static void put_quoted(json_writer *w, const char *value, size_t size)
{
    char text[TEXT_MAX];
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        i += value[i] == '\\' && i + 1 < size && strchr("\\\"", value[i + 1]);
        text[n++] = value[i];
    }
    json_put_text(w, text, n);
}

static void put_field_value(json_writer *w, const char *value, size_t n)
{
    char number[48], *end = NULL;
    if (n > 0 && n < sizeof number && (isdigit((unsigned char)value[0]) || value[0] == '-')) {
        memcpy(number, value, n);
        number[n] = 0;
        double real = strtod(number, &end);
        if (!*end && !strpbrk(number, "xX") && strspn(number, "-0123456789") == n && n < 18) {
            json_put_int(w, strtoll(number, NULL, 10));
            return;
        }
        if (!*end && !strpbrk(number, "xXiInN")) {
            json_put_real(w, real);
            return;
        }
    }
    json_put_text(w, value, n);
}

static void event_json(int level, const struct timespec *now, const char *text)
{
    struct tm utc;
    char stamp[64];
    gmtime_r(&now->tv_sec, &utc);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + n, sizeof stamp - n, ".%03ldZ", now->tv_nsec / 1000000);
    fields f = {.count = 0};
    size_t event = (size_t)(fields_start(text, &f) - text);
    while (event > 0 && text[event - 1] == ' ')
        event--;
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "time", stamp);
    json_put_key_cstr(&w, "level", level_name[level]);
    json_put_key_cstr(&w, "role", state.role);
    json_put_key_int(&w, "pid", getpid());
    json_put_key_text(&w, "event", text, event);
    if (f.count) { /* in an object of their own, because a field can be named "time" too */
        json_begin_key_object(&w, "fields");
        for (const field *x = f.list; x < f.list + f.count; x++) {
            char name[KEY_MAX];
            snprintf(name, sizeof name, "%.*s", (int)x->key_size, x->key);
            json_put_key(&w, name);
            if (x->quoted)
                put_quoted(&w, x->value, x->size);
            else
                put_field_value(&w, x->value, x->size);
        }
        json_end_object(&w);
    }
    json_end_object(&w);
    char *line = NULL;
    size_t size = 0;
    if (json_writer_take(&w, &line, &size) != ST_OK)
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
