/* print_work.h: builds leases of examples, does them, and hashes what comes of them. */
#ifndef TESSERA_PREPD_WORKER_PRINT_WORK_H
#define TESSERA_PREPD_WORKER_PRINT_WORK_H

#include "prepd/agreed/fingerprints.h"
#include "prepd/sample/fit.h"
#include "prepd/worker/examples.h"
#include "prepd/worker/worker.h"

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

/* A document of a lease (prepd/serve/core/payload.c). */
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

#endif
