/* SPDX-License-Identifier: Apache-2.0 */
/* html_page.h: what the project's HTML pages have in common: the head with a style for light and
 * dark screens of any width, and a list of facts; and an evaluation as text, for the terminal and
 * as facts. A page is one file that needs no network. */
#ifndef TESSERA_TRAINER_EVAL_HTML_PAGE_H
#define TESSERA_TRAINER_EVAL_HTML_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base/hash.h"
#include "common/conf/conf.h"
#include "trainer/eval/evaluate.h"

/* Which weights a page is about. It is in the page, so that none takes the place of another's. */
typedef struct html_mark {
    hash128 run;  /* of the path of the run's folder, or of a model's */
    int64_t step; /* of a model that is as it is in model.path: 0 */
} html_mark;

/* step: of the run of the options; below 0: the weights are those of model.path. */
html_mark html_mark_of(const conf *options, int64_t step);
/* Writes to `out` where such a page goes: `path`, or, where another run's page, one of a later step
 * or any other file is, NAME-2.EXT, NAME-3.EXT and so on beside it. ST_CANT_CREATE: too long. */
WARN_UNUSED status html_page_place(const char *path, html_mark mark, char out[STATUS_PATH_MAX]);
/* Called before a run resumes from mark.step: renames its page of a later step to set-aside-NAME,
 * with a number if that exists. any: whoever's page it is. out: the new name; "": there was none.
 */
WARN_UNUSED status html_page_set_aside(const char *path, html_mark mark, bool any,
                                       char out[STATUS_PATH_MAX]);

/* Opens a file beside `path` that html_page_close puts in its place as a whole; if it cannot, `path`
 * stays as it was. ST_CANT_CREATE and ST_IO name the file. */
WARN_UNUSED status html_page_open(const char *path, FILE **out);
WARN_UNUSED status html_page_close(const char *path, FILE **file);

/* A fact is drawn as a tile: its name, the value in large letters, and a note below it. All three
 * are plain text, which is escaped. */
typedef struct html_fact {
    const char *name;
    char value[128], note[160]; /* note "": none */
} html_fact;

/* Begins a page. style: rules of this page alone, after those of all pages. The colours are the
 * variables --ink, --paper, --faint (words of less weight), --line, --panel, --mark (curves),
 * --good and --bad. */
void html_page_begin(FILE *to, const char *title, const char *style, html_mark mark);
void html_page_facts(FILE *to, const html_fact *facts, int count);
void html_page_end(FILE *to);

/* Prints the figures as lines: "eval: loss: .." and, where there is more to say, lines for whole
 * documents and for generated answers. step below 0: an evaluation that does not lie between steps,
 * which is printed with exchanged pictures and chance. */
void evaluation_print(const evaluation *result, int64_t step);
/* Writes the figures as facts: loss, accuracy, exchanged pictures and chance where they are known,
 * whole documents where some have several answers, and generated answers. Returns how many. */
enum { EVALUATION_FACTS = 6 };
int evaluation_facts(const evaluation *result, html_fact out[EVALUATION_FACTS]);

/* Writes the name of a model or a path as a page shows it: without the folders of this machine. A
 * path in or below `folder` becomes relative to it, another absolute one its last part; any other
 * text stays as it is. */
void path_shown(const char *path, const char *folder, char *out, size_t size);
/* The run, by the name of its folder. */
void run_fact(const conf *options, html_fact *out);
/* What the run's data set is, or with held_out what it is evaluated on. */
void data_fact(const conf *options, bool held_out, html_fact *out);

#endif
