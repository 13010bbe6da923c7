/* figures.h: an evaluation in words, for the terminal and for pages. Every figure says what it is
 * taken over. */
#ifndef TESSERA_TRAINER_EVAL_FIGURES_H
#define TESSERA_TRAINER_EVAL_FIGURES_H

#include "trainer/eval/evaluate.h"
#include "trainer/eval/html_page.h"

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
