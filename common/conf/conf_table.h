/* conf_table.h: inside of conf.h: the rows of options.def and removed.def as data. */
#ifndef TESSERA_COMMON_CONF_TABLE_H
#define TESSERA_COMMON_CONF_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/conf/conf.h"

typedef enum row_kind {
    ROW_SECTION, /* key = the section's name */
    ROW_ALIAS,   /* text = the key it stands for */
    ROW_REMOVED, /* text = the value it had, help = the advice (removed.def) */
    ROW_INT,
    ROW_REAL,
    ROW_BOOL,
    ROW_TEXT,
    ROW_ENUM,
} row_kind;

typedef enum text_kind { TEXT_PLAIN, TEXT_PATH, TEXT_ENDPOINT } text_kind;
typedef enum row_owner { OWNER_PREPD, OWNER_TRAINER, OWNER_BOTH } row_owner;
typedef enum row_flow { FLOW_LOCAL, FLOW_STREAM } row_flow;
typedef enum row_level { LEVEL_BASIC, LEVEL_EXPERT } row_level;

typedef struct conf_row {
    row_kind kind;
    const char *key;
    size_t offset; /* of the field in struct conf */
    row_owner owner;
    row_flow flow;
    row_level level;
    const char *help;
    const char *unit;    /* "" if none */
    const char *text;    /* TEXT, ENUM: the default; ALIAS: the key meant */
    const char *choices; /* ENUM: "a|b" */
    text_kind text_kind;
    bool yes; /* BOOL: the default */
    int64_t integer, integer_min, integer_max;
    double real, real_min, real_max;
} conf_row;

extern const conf_row conf_rows[];
extern const size_t conf_n_rows;

bool conf_row_is_option(const conf_row *r);         /* no section, alias or removed one */
const conf_row *conf_row_find(const char *key);     /* no section; NULL if none */
const conf_row *conf_row_target(const conf_row *r); /* of an alias; else itself */
bool conf_is_section(const char *name);
const char *conf_first_key(const char *section); /* of a section there is */
/* The nearest key by edit distance, NULL if none is near; a word without a dot is held against the
 * keys' ends. */
const char *conf_nearest_key(const char *key);
/* Smallest number of inserted, removed or replaced bytes, case aside. */
size_t conf_distance(const char *a, const char *b);
/* Whether so many edits of a word make a likely mistake: a third of it, of a short one two. */
bool conf_is_near(const char *word, size_t distance);

/* Choices of an ENUM row. */
int conf_choice_count(const conf_row *r);
void conf_choice_name(const conf_row *r, int i, char *out, size_t size);
int conf_choice_find(const conf_row *r, const char *text); /* case aside; -1 if none */

/* The field as the text that reads back the same, without quotes. */
void conf_value_text(const conf *c, const conf_row *r, char *out, size_t size);
/* The default in the same form, and the range with its unit ("16 to 1048576 tokens"). */
void conf_default_text(const conf_row *r, char *out, size_t size);
void conf_range_text(const conf_row *r, char *out, size_t size);

enum { CONF_TEXT_MAX = 4096 }; /* bytes of any value as text */

static inline int64_t *conf_int(conf *c, const conf_row *r)
{
    return (int64_t *)(void *)((char *)c + r->offset);
}

static inline double *conf_real(conf *c, const conf_row *r)
{
    return (double *)(void *)((char *)c + r->offset);
}

static inline bool *conf_bool(conf *c, const conf_row *r)
{
    return (bool *)(void *)((char *)c + r->offset);
}

static inline int *conf_enum(conf *c, const conf_row *r)
{
    return (int *)(void *)((char *)c + r->offset);
}

static inline const char **conf_text(conf *c, const conf_row *r)
{
    return (const char **)(void *)((char *)c + r->offset);
}

/* Where a value comes from: how errors name it, and what its relative paths start at. */
typedef struct conf_origin {
    const char *name; /* file, or "command line" */
    int64_t line;     /* -1 on the command line */
    const char *base; /* folder, absolute */
    status code;      /* of the failures: ST_CONFIG for a file, ST_USAGE for the command line */
} conf_origin;

#define CONF_FAIL(origin, ...)                                                                     \
    FAIL_AT((origin)->code, (origin)->name, (origin)->line, -1, __VA_ARGS__)

/* Checks text against the row (no alias) and stores it, if it is no removed one. */
WARN_UNUSED status conf_value_set(conf *c, const conf_row *r, const char *text,
                                  const conf_origin *origin);
/* true, yes, on, 1 and their opposites; false if text is none of them. */
bool conf_bool_parse(const char *text, bool *out);
WARN_UNUSED status conf_unknown_key(const char *key, const conf_origin *origin);

#endif
