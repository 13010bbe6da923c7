/* text_rows.c: makes rows of random tokens and writes them as a recording. */
#include "trainer/bench/text_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/base/words.h"
#include "proto/codec.h"
#include "proto/record.h"

static int64_t documents(int64_t seq_len, int64_t document)
{
    return (seq_len + document - 1) / document;
}

static status make_row(const model_dims *d, int64_t number, int64_t seq_len, int64_t document,
                       arena *a, row *out)
{
    row r = {.n_tokens = seq_len, .n_docs = documents(seq_len, document)};
    int64_t ids = d->vision_start > 0 ? d->vision_start : d->text.vocab;
    rng_key key = rng_key_make((uint64_t)number, "bench rows");
    TRY(row_alloc(&r, a, 0));
    for (int64_t t = 0; t < seq_len; t++) {
        int64_t at = t % document;
        r.input_ids[t] = (int32_t)rng_below(key, (uint64_t)t, (uint64_t)ids);
        r.labels[t] = at == 0 ? NO_LABEL : r.input_ids[t];
        for (int axis = 0; axis < 3; axis++)
            r.position_ids[axis * seq_len + t] = (int32_t)at;
        if (at == 0) {
            r.cu_seqlens[t / document] = (int32_t)t;
            r.doc_sample_id[t / document] = (uint64_t)(number * r.n_docs + t / document);
        }
    }
    r.cu_seqlens[r.n_docs] = (int32_t)seq_len;
    r.cursor = "{}";
    r.quarantine = "[]";
    *out = r;
    return ST_OK;
}

/* Writes the WELCOME message with the shapes of the rows, as a daemon's plan would, because a GPU
 * chooses its kernels by the shapes that may come. If there is room for pictures, the contents of a
 * row are left open. */
static void tell_shapes(char *out, size_t size, int64_t seq_len, int64_t document,
                        int64_t patch_budget)
{
    size_t n = words_add(out, size, 0, "{\"seq_len\":%" PRId64 ",\"patch_budget\":%" PRId64,
                         seq_len, patch_budget);
    if (patch_budget == 0)
        n = words_add(out, size, n,
                      ",\"buckets\":[{\"tokens\":%" PRId64 ",\"patches\":0,\"targets\":%" PRId64
                      ",\"documents\":%" PRId64 ",\"longest\":%" PRId64
                      ",\"images\":0,\"frames\":0}]",
                      seq_len, seq_len, documents(seq_len, document),
                      document < seq_len ? document : seq_len);
    words_add(out, size, n, "}");
}

status text_rows_record(const char *path, const model_dims *d, int64_t rows, int64_t seq_len,
                        int64_t document, int64_t patch_budget)
{
    record_writer *w = NULL;
    codec *c = NULL;
    wire_msg *m = NULL;
    arena a;
    char welcome[512];
    status st = ST_OK;
    arena_init(&a, 0);
    document = document > 0 ? document : seq_len;
    tell_shapes(welcome, sizeof welcome, seq_len, document, patch_budget);
    TRY_OR(done, record_create(path, welcome, &w));
    TRY_OR(done, codec_new(&c));
    TRY_OR(done, wire_msg_new(&m));
    for (int64_t i = 0; i < rows; i++) {
        row r;
        arena_reset(&a);
        wire_msg_clear(m);
        TRY_OR(done, make_row(d, i, seq_len, document, &a, &r));
        TRY_OR(done, codec_encode(c, &r, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, m));
        TRY_OR(done, record_add(w, m));
    }
    st = record_finish(&w);
done:
    record_abandon(&w);
    wire_msg_free(&m);
    codec_free(&c);
    arena_done(&a);
    return st;
}

status text_rows_own(const conf *c, const model_dims *d, char path[STATUS_PATH_MAX])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, STATUS_PATH_MAX, "%s/bench-rows-%ld.rec", folder && *folder ? folder : "/tmp",
             (long)getpid());
    return text_rows_record(path, d, 2 * c->training_global_batch_size, c->training_seq_len,
                            c->bench_document, 0);
}
