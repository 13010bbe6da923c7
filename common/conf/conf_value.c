/* SPDX-License-Identifier: Apache-2.0 */
/* conf_value.c: reads the text of one value, checks it against its row of the table, and stores it
 * in struct conf. */
#include "common/conf/conf_table.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/file.h"
#include "common/base/model_cache.h"

enum { PORT_MAX = 65533 /* the two ports after it are used too, for workers and control */ };

/* Copies the number without the underscores between its digits (1_000_000). False if an underscore
 * is anywhere else, or a character cannot be part of a number. */
static bool plain_number(const char *text, char *out, size_t size)
{
    size_t count = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '_') {
            if (at == text || !isdigit((unsigned char)at[-1]) || !isdigit((unsigned char)at[1]))
                return false;
            continue;
        }
        if (count + 1 >= size || !(isdigit((unsigned char)*at) || strchr("+-.eE", *at)))
            return false; /* hexadecimal, inf and spaces are not accepted */
        out[count++] = *at;
    }
    out[count] = 0;
    return count > 0;
}

static bool parse_int(const char *text, int64_t *out)
{
    char digits[64], *end;
    if (!plain_number(text, digits, sizeof digits))
        return false;
    errno = 0;
    long long value = strtoll(digits, &end, 10);
    if (!*end && errno == 0) {
        *out = value;
        return true;
    }
    double real = strtod(digits, &end); /* such as 1e6 */
    if (*end || !(fabs(real) < 0x1p63) || real != floor(real) || !strpbrk(digits, "eE"))
        return false;
    *out = (int64_t)real;
    return true;
}

/* Cuts a binary unit (8GiB, 8 GiB) off the end of text and returns its factor; 1 if there is no
 * unit. */
static int64_t cut_unit(char *text)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    enum { LETTERS = 3, N_UNITS = sizeof units / sizeof *units };
    const size_t length = strlen(text);
    char *end = text + length - (length > LETTERS ? LETTERS : length);
    for (int i = 0; i < N_UNITS; i++) {
        if (strcasecmp(end, units[i]) != 0)
            continue;
        end -= end > text && end[-1] == ' ';
        *end = 0;
        return INT64_C(1) << 10 * (i + 1);
    }
    return 1;
}

static bool parse_bytes(const char *text, int64_t *out)
{
    char number[80];
    if (snprintf(number, sizeof number, "%s", text) >= (int)sizeof number)
        return false;
    const int64_t unit = cut_unit(number);
    int64_t value;
    return parse_int(number, &value) && !__builtin_mul_overflow(value, unit, out);
}

static bool parse_real(const char *text, double *out)
{
    char digits[64], *end;
    if (!plain_number(text, digits, sizeof digits))
        return false;
    double value = strtod(digits, &end);
    if (*end || end == digits || !isfinite(value))
        return false;
    *out = value;
    return true;
}

bool conf_bool_parse(const char *text, bool *out)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int j = 0; j < 2; j++)
            if (strcasecmp(text, words[i][j]) == 0) {
                *out = j;
                return true;
            }
    return false;
}

static status set_int(conf *options, const conf_row *option, const char *text,
                      const conf_origin *origin)
{
    char range[128];
    int64_t value;
    conf_range_text(option, range, sizeof range);
    const bool bytes = strcmp(option->unit, "bytes") == 0;
    if (bytes ? !parse_bytes(text, &value) : !parse_int(text, &value))
        return CONF_FAIL(origin, "%s: expected a whole number (%s%s), found \"%.100s\"",
                         option->key, range, bytes ? ", or in KiB, MiB, GiB, TiB" : "", text);
    if (value < option->integer_min || value > option->integer_max)
        return CONF_FAIL(origin, "%s: %lld is out of range; allowed: %s", option->key,
                         (long long)value, range);
    *conf_int(options, option) = value;
    return ST_OK;
}

static status set_real(conf *options, const conf_row *option, const char *text,
                       const conf_origin *origin)
{
    char range[128];
    double value;
    conf_range_text(option, range, sizeof range);
    if (!parse_real(text, &value))
        return CONF_FAIL(origin, "%s: expected a number (%s), found \"%.100s\"", option->key, range,
                         text);
    if (value < option->real_min || value > option->real_max)
        return CONF_FAIL(origin, "%s: %g is out of range; allowed: %s", option->key, value, range);
    *conf_real(options, option) = value;
    return ST_OK;
}

static status set_enum(conf *options, const conf_row *option, const char *text,
                       const conf_origin *origin)
{
    int choice = conf_choice_find(option, text);
    if (choice >= 0) {
        *conf_enum(options, option) = choice;
        return ST_OK;
    }
    char name[64], nearest[64] = "", list[512] = "";
    size_t least = SIZE_MAX;
    for (int i = 0; i < conf_choice_count(option); i++) {
        conf_choice_name(option, i, name, sizeof name);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", name);
        size_t distance = conf_distance(text, name);
        if (distance < least) {
            least = distance;
            memcpy(nearest, name, sizeof nearest);
        }
    }
    bool close_enough = least <= strlen(nearest) / 2;
    return CONF_FAIL(origin, "%s: \"%.100s\" is not one of: %s%s%s%s", option->key, text, list,
                     close_enough ? "; did you mean " : "", close_enough ? nearest : "",
                     close_enough ? "?" : "");
}

/* What a relative path means: `joined`, the path below the folder it starts at. A model for which
 * there is no such folder may be an Org/Name in the Hugging Face cache; a model.path without a
 * slash stays as it is, since it may be the name of a preset. */
static const char *meaning(const conf_row *option, const char *text, const char *joined,
                           char found[STATUS_PATH_MAX])
{
    bool model = strcmp(option->key, "model.path") == 0;
    if ((!model && strcmp(option->key, "model.tokenizer") != 0) || file_is_folder(joined))
        return joined;
    if (model_cache_find(text, found))
        return found;
    return model && !strchr(text, '/') ? text : joined;
}

bool conf_is_endpoint(const char *text)
{
    if (strncmp(text, "ipc://", 6) == 0)
        return text[6] != 0;
    const char *port = strrchr(text, ':');
    if (strncmp(text, "tcp://", 6) != 0 || port <= text + 6 || !isdigit((unsigned char)port[1]))
        return false;
    char *end;
    const long count = strtol(port + 1, &end, 10);
    return !*end && count >= 1 && count <= PORT_MAX;
}

/* Joins a relative path to the folder that it starts at. That is absolute and has no links in it,
 * so a leading ".." takes its last part away; a later one may follow a link and is left for the
 * file system. False if there is no room for the path. */
static bool join_path(char *out, size_t size, const char *scheme, const char *base,
                      const char *path)
{
    size_t length = strlen(base);
    while (length > 0 && base[length - 1] == '/')
        length--;
    for (;;) {
        const size_t part = strcspn(path, "/");
        if (!*path || part > 2 || strncmp(path, "..", part) != 0)
            break; /* neither . nor .. */
        while (part == 2 && length > 0 && base[--length] != '/')
            ;
        path += part + strspn(path + part, "/");
    }
    const bool bare = !*path && length > 0;
    return (size_t)snprintf(out, size, "%s%.*s%s%s", scheme, (int)length, base, bare ? "" : "/",
                            path) < size;
}

static status set_text(conf *options, const conf_row *option, const char *text,
                       const conf_origin *origin)
{
    char joined[CONF_TEXT_MAX], found[STATUS_PATH_MAX];
    const char *path = text, *scheme = "";
    if (strlen(text) >= CONF_TEXT_MAX)
        return CONF_FAIL(origin, "%s: the value is longer than %d bytes", option->key,
                         CONF_TEXT_MAX - 1);
    if (option->text_kind == TEXT_ENDPOINT && !conf_is_endpoint(text))
        return CONF_FAIL(origin,
                         "%s: \"%.200s\" is neither ipc://PATH nor tcp://HOST:PORT with a port of "
                         "1 to %d",
                         option->key, text, PORT_MAX);
    if (option->text_kind == TEXT_ENDPOINT && strncmp(text, "ipc://", 6) == 0) {
        scheme = "ipc://";
        path = text + 6;
    }
    bool is_path = option->text_kind == TEXT_PATH || *scheme;
    if (is_path && *path && *path != '/' && !(*scheme && *path == '@')) { /* @: abstract socket */
        if (!join_path(joined, sizeof joined, scheme, origin->base, path))
            return CONF_FAIL(origin, "%s: the path is longer than %d bytes", option->key,
                             CONF_TEXT_MAX - 1);
        text = meaning(option, text, joined, found);
    }
    char *kept;
    TRY(arena_strndup(&options->texts, text, strlen(text), &kept));
    *conf_text(options, option) = kept;
    return ST_OK;
}

static status check_removed(const conf_row *option, const char *text, const conf_origin *origin)
{
    if (strcasecmp(text, option->text) == 0)
        return ST_OK;
    return CONF_FAIL(
        origin,
        "%s: \"%.100s\" is refused, because this option no longer exists: %s; leave it "
        "out",
        option->key, text, option->help);
}

status conf_value_set(conf *options, const conf_row *option, const char *text,
                      const conf_origin *origin)
{
    switch (option->kind) {
    case ROW_REMOVED:
        return check_removed(option, text, origin);
    case ROW_INT:
        return set_int(options, option, text, origin);
    case ROW_REAL:
        return set_real(options, option, text, origin);
    case ROW_BOOL:
        if (!conf_bool_parse(text, conf_bool(options, option)))
            return CONF_FAIL(
                origin, "%s: expected true or false (yes, no, on, off, 1, 0), found \"%.100s\"",
                option->key, text);
        return ST_OK;
    case ROW_ENUM:
        return set_enum(options, option, text, origin);
    default:
        return set_text(options, option, text, origin);
    }
}

status conf_unknown_key(const char *key, const conf_origin *origin)
{
    if (conf_is_section(key)) {
        const char *first = conf_first_key(key);
        return CONF_FAIL(origin,
                         "%s is a section and takes no value of its own: write its keys below it, "
                         "indented (%s:, then %s: ..), or with a dot (%s: ..)",
                         key, key, first + strlen(key) + (first[strlen(key)] == '.'), first);
    }
    char guess[256];
    const bool guessed = conf_guess(key, guess, sizeof guess);
    return CONF_FAIL(origin, "there is no option \"%.200s\"; %s%s%s", key,
                     guessed ? "did you mean "
                             : "configs/other-trainers.md lists other trainers' keys",
                     guessed ? guess : "", guessed ? "?" : "");
}
