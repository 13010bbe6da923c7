/* SPDX-License-Identifier: Apache-2.0 */
/* row_prints.h: the fingerprints of rows: a digest of rows made by this program, from a built-in
 * list of leases.
 *
 * The leases (row_prints.c) are done as any others are, by make_records and make_row, and the
 * rows are decoded as a receiver decodes them. So two builds with the same fingerprints make the
 * same rows of the same leases, as far as the list goes: it has every format, decoder, resampler
 * and form of document (tests/style/leases checks that). Nothing is read from the disk. */
#ifndef TESSERA_PREPD_WORKER_ROW_PRINTS_H
#define TESSERA_PREPD_WORKER_ROW_PRINTS_H

#include <stddef.h>
#include <stdint.h>

#include "prepd/agreed/fingerprints.h"
#include "prepd/sample/fit.h"
#include "prepd/worker/media/image_load.h"
#include "prepd/worker/worker.h"

/* Makes those of pictures and texts: PRINT_JPEG to PRINT_PACKING. */
WARN_UNUSED status row_prints_make(const image_api *images, fingerprints *inout_prints);
/* Makes PRINT_CLIPS. */
WARN_UNUSED status row_prints_make_clips(const image_api *images, const video_api *videos,
                                         fingerprints *inout_prints);

/* The files of the folder `examples`, which are part of the program: small pictures and
 * clips in every format that is read, and a small tokenizer. tests/golden/make_examples.py wrote
 * them. */

typedef struct example {
    const char *name; /* "ycc420.jpg" */
    const uint8_t *bytes;
    size_t size;
} example;

extern const example examples[]; /* [n_examples] in the order of their names */
extern const int n_examples;

/* Builds leases of examples, does them, and hashes what comes of them. */

enum { MOST_FILES = 4 };

/* What is used for all built-in leases. */
typedef struct print_work {
    workshop shop;
    wire_msg *files;    /* the message that the lease in work came in */
    json_writer listed; /* its list "files" */
    json_writer docs;   /* its list "docs" */
    arena memory;       /* of the decoded row */
    hasher *hash;       /* of the fingerprint in work */
    int64_t row;        /* number of the last row */
} print_work;

/* A file of a lease, and what an images lease found out about it. */
typedef struct print_file {
    const example *from; /* the file; of a folder the first of its frames */
    int n_frames;        /* a folder of this many examples; 0: a file */
    bool video;
    int64_t piece; /* where the file begins in a larger one; 0: it is a file of its own */
    int64_t height, width, frames; /* 0 if it cannot be decoded */
    double fps;
} print_file;

/* A document of a lease (prepd/serve/core/rows/payload.c). */
typedef struct print_doc {
    int64_t id, tokens, from, whole, before;
    int32_t part, prefix;
    bool plain, same, shared, bad;
    const char *turns; /* JSON */
    const char *clip;  /* JSON; NULL if the document shows no clip */
    int n_images;
    int64_t images[MOST_FILES];
    fit_grid grids[MOST_FILES];
} print_doc;

/* What a texts lease found out about a text. */
typedef struct print_text {
    const char *turns;
    bool plain;
    int n_images;
    const char *clip; /* as in print_doc */
    int64_t tokens, agrees, head, first_label;
} print_text;

/* Does an images lease of one file, and sets the facts of `file`. */
WARN_UNUSED status print_measure_file(print_work *work, print_file *file);
/* Does a texts lease, in which each text is compared with the one before it. */
WARN_UNUSED status print_measure_texts(print_work *work, print_text *texts, int n_texts);

/* Begins a row lease; then its files are added, then its documents, and print_end_row does it. */
void print_begin_row(print_work *work);
WARN_UNUSED status print_add_file(print_work *work, const print_file *file);
void print_add_doc(print_work *work, const print_doc *doc);
WARN_UNUSED status print_end_row(print_work *work, bool press);

/* The built-in leases by whose rows two builds are compared (row_prints.h). */

#endif
