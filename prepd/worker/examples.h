/* examples.h: the files of the folder `examples`, which are part of the program: small pictures and
 * clips in every format that is read, and a small tokenizer. tests/golden/make_examples.py wrote
 * them. */
#ifndef TESSERA_PREPD_WORKER_EXAMPLES_H
#define TESSERA_PREPD_WORKER_EXAMPLES_H

#include <stddef.h>
#include <stdint.h>

typedef struct example {
    const char *name; /* "ycc420.jpg" */
    const uint8_t *bytes;
    size_t size;
} example;

extern const example examples[]; /* [n_examples] in the order of their names */
extern const int n_examples;

#endif
