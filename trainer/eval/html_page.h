/* html_page.h: what the project's HTML pages have in common: the head with a style for light and
 * dark screens of any width, and a list of facts. A page is one file that needs no network. */
#ifndef TESSERA_TRAINER_EVAL_HTML_PAGE_H
#define TESSERA_TRAINER_EVAL_HTML_PAGE_H

#include <stdio.h>

/* A fact is drawn as a tile: its name, the value in large letters, and a note below it. All three
 * are plain text, which is escaped. */
typedef struct html_fact {
    const char *name;
    char value[128], note[160]; /* note "": none */
} html_fact;

/* Begins a page. style: rules of this page alone, after those of all pages. The colours are the
 * variables --ink, --paper, --faint (words of less weight), --line, --panel, --mark (curves),
 * --good and --bad. */
void html_page_begin(FILE *to, const char *title, const char *style);
void html_page_facts(FILE *to, const html_fact *facts, int count);
void html_page_end(FILE *to);

#endif
