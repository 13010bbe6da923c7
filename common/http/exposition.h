/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h: Prometheus's text format, and the figures of a process that every program of
 * Prometheus's own client libraries tells under the same names. */
#ifndef TESSERA_COMMON_HTTP_EXPOSITION_H
#define TESSERA_COMMON_HTTP_EXPOSITION_H

#include <stddef.h>
#include <stdio.h>

/* A label's name, and its value, which may be any text. */
typedef struct exposition_label {
    const char *name, *value;
} exposition_label;

/* Begins a metric: its HELP and TYPE ("gauge", "counter") lines. Its samples follow. */
void exposition_family(FILE *out, const char *name, const char *type, const char *help);
/* A sample with [count] labels. Values from outside are shown as in a log (base/words.h), so that
 * no name of a file can break the format. */
void exposition_sample(FILE *out, const char *name, const exposition_label *labels, size_t count,
                       double value);
/* A sample with one label. */
void exposition_labelled(FILE *out, const char *name, const char *label, const char *is,
                         double value);
/* A metric that has one sample and no labels. */
void exposition_one(FILE *out, const char *name, const char *type, const char *help, double value);

/* CPU time, memory, start and descriptors of this process, as process_*. What /proc does not tell
 * is left out. */
void exposition_process(FILE *out);

#endif
