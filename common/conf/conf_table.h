/* SPDX-License-Identifier: Apache-2.0 */
/* conf_table.h: the rows of options.def and removed.def as an array, and the functions that read
 * and print single values by their row. Only conf's own files and those of program/verb, which look
 * up flags, include it; everything else uses the fields of struct conf.
 *
 * A rule that involves several options is in conf_check.c. */
#ifndef TESSERA_COMMON_CONF_TABLE_H
#define TESSERA_COMMON_CONF_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/conf/conf.h"

typedef enum row_kind {
    ROW_SECTION, /* a heading: key = the section's name */
    ROW_ALIAS,   /* another spelling: text = the key that it means */
    ROW_REMOVED, /* an option of removed.def: text = the value it had, help = the advice */
    ROW_INT,
    ROW_REAL,
    ROW_BOOL,
    ROW_TEXT,
    ROW_ENUM,
} row_kind;

typedef enum text_kind { TEXT_PLAIN, TEXT_PATH, TEXT_ENDPOINT } text_kind;
typedef enum row_flow { FLOW_LOCAL, FLOW_STREAM } row_flow;
typedef enum row_level { LEVEL_BASIC, LEVEL_EXPERT } row_level;

typedef struct conf_row {
    row_kind kind;
    const char *key;
    size_t offset;  /* of the field in struct conf */
    unsigned verbs; /* those that act on it; conf_table.c names them */
    row_flow flow;
    row_level level;
    const char *help;
    const char *unit;    /* of INT and REAL, "" if it has none */
    const char *text;    /* TEXT and ENUM: the default; ALIAS: the key that it means */
    const char *choices; /* ENUM: "a|b" */
    text_kind text_kind;
    bool yes;                                  /* BOOL: the default */
    int64_t integer, integer_min, integer_max; /* INT: the default and its range, ends included */
    double real, real_min, real_max;           /* REAL: the same */
} conf_row;

extern const conf_row conf_rows[];
extern const size_t conf_n_rows;

/* True for a row that has a field in struct conf: not for a section,
 * an alias or a removed option. */
bool conf_row_is_option(const conf_row *row);
/* The option, alias or removed option of this key ("training.seq_len"); NULL if there is none. */
const conf_row *conf_row_find(const char *key);
/* The option that an alias means; any other row is returned as it is. */
const conf_row *conf_row_target(const conf_row *row);
/* Whether a section of this name exists ("training"). */
bool conf_is_section(const char *name);
/* The first key of a section that exists, for the message about a section used as a key. */
const char *conf_first_key(const char *section);
/* The key with the smallest edit distance to this one, or NULL if none is near. A word without a
 * dot is compared with the last parts of the keys. */
const char *conf_nearest_key(const char *key);
/* Writes what the author of an unknown key probably meant, as words for "did you mean ..?": the
 * nearest key, or up to three keys that end in the same word. False if there is no guess. */
bool conf_guess(const char *key, char *out, size_t size);
/* Whether the text has the form ipc://PATH or tcp://HOST:PORT. Whether the path fits into a
 * socket's address and whether the host exists is checked by proto, when the endpoint is opened. */
bool conf_is_endpoint(const char *text);
/* The smallest number of bytes to insert, remove or replace that makes the words equal, without
 * regard to case. At most 128 bytes of each are compared. */
size_t conf_distance(const char *one, const char *other);
/* Whether this many edits still look like a slip of the writer: up to a third of the word's length,
 * and at least two. */
bool conf_is_near(const char *word, size_t distance);

/* Whether the verb acts on the option: `trainer VERB`, or else `prepd VERB`. NULL means any verb of
 * the program. */
bool conf_is_read(const conf_row *row, bool trainer, const char *verb);
/* The same, or the verb compares the option with that of the other program, since it changes the
 * rows. */
bool conf_is_taken(const conf_row *row, bool trainer, const char *verb);
/* Writes the verbs that act on the option: "prepd serve, prepd check, trainer train". */
void conf_readers_text(const conf_row *row, char *out, size_t size);

/* The choices of an ENUM row, counted from 0. */
int conf_choice_count(const conf_row *row);
void conf_choice_name(const conf_row *row, int index, char *out, size_t size);
/* The number of the choice, found without regard to case; -1 if there is none. */
int conf_choice_find(const conf_row *row, const char *text);

/* The value of the option in `options` as a text without quotes, which would be read back as the
 * same value. `size` CONF_TEXT_MAX is always enough. */
void conf_value_text(const conf *options, const conf_row *row, char *out, size_t size);
/* The default in the same form. */
void conf_default_text(const conf_row *row, char *out, size_t size);
/* The range with its unit ("16 to 1048576 tokens", "at least 0 steps"); "" for rows without one. */
void conf_range_text(const conf_row *row, char *out, size_t size);
/* What an option's value is called in help ("N", "PATH", "a|b"), and its help with its default and
 * range. `size` CONF_TEXT_MAX is always enough. */
const char *conf_value_name(const conf_row *row);
void conf_row_words(const conf_row *row, char *out, size_t size);

/* An exit code's status, and the mistakes that end with it, with literal words in backticks. */
typedef struct conf_exit_row {
    status code;
    const char *mistakes;
} conf_exit_row;

extern const conf_exit_row conf_exit_rows[];
extern const size_t conf_n_exit_rows;

enum { CONF_TEXT_MAX = 4096 }; /* bytes that hold any value as text, the NUL included */

/* The field of struct conf that belongs to the row, which must be of this kind. */

static inline int64_t *conf_int(conf *options, const conf_row *option)
{
    return (int64_t *)(void *)((char *)options + option->offset);
}

static inline double *conf_real(conf *options, const conf_row *option)
{
    return (double *)(void *)((char *)options + option->offset);
}

static inline bool *conf_bool(conf *options, const conf_row *option)
{
    return (bool *)(void *)((char *)options + option->offset);
}

static inline int *conf_enum(conf *options, const conf_row *option)
{
    return (int *)(void *)((char *)options + option->offset);
}

static inline const char **conf_text(conf *options, const conf_row *option)
{
    return (const char **)(void *)((char *)options + option->offset);
}

/* Where a value comes from. Errors name it, and relative paths start at its folder. */
typedef struct conf_origin {
    const char *name; /* the path of the file, or "command line" */
    int64_t line;     /* in the file, from 1; -1 on the command line */
    const char *base; /* the folder that relative paths start at, absolute */
    status code;      /* of failures: ST_CONFIG for a file, ST_USAGE for the command line */
} conf_origin;

#define CONF_FAIL(origin, ...)                                                                     \
    FAIL_AT((origin)->code, (origin)->name, (origin)->line, -1, __VA_ARGS__)

/* Checks the text against the row, which is not an alias, and stores the value in `options`; a text
 * is copied into the conf's arena. For a removed option nothing is stored. Fails with origin->code
 * and with the place if the text is not a value of the option. */
WARN_UNUSED status conf_value_set(conf *options, const conf_row *option, const char *text,
                                  const conf_origin *origin);
/* Reads true, yes, on, 1 and their opposites, in any case of letters. Returns false if text is none
 * of them. */
bool conf_bool_parse(const char *text, bool *out);
/* Always fails: there is no option of this key. The message names the nearest one. */
WARN_UNUSED status conf_unknown_key(const char *key, const conf_origin *origin);

#endif
