/* SPDX-License-Identifier: Apache-2.0 */
/* text_rows.c: makes rows of random tokens and writes them as a recording. */
#include "trainer/bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "common/base/words.h"
#include "proto/message/codec.h"
#include "proto/message/record.h"

static int64_t documents(int64_t seq_len, int64_t document)
{
    return (seq_len + document - 1) / document;
}

static status make_row(const model_dims *dims, int64_t number, int64_t seq_len, int64_t document,
                       arena *memory, row *out)
{
    row packed = {.n_tokens = seq_len, .n_docs = documents(seq_len, document)};
    int64_t ids = dims->vision_start > 0 ? dims->vision_start : dims->text.vocab;
    rng_key key = rng_key_make((uint64_t)number, "bench rows");
    TRY(row_alloc(&packed, memory, 0));
    for (int64_t i = 0; i < seq_len; i++) {
        int64_t at = i % document;
        packed.input_ids[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)ids);
        packed.labels[i] = at == 0 ? NO_LABEL : packed.input_ids[i];
        for (int axis = 0; axis < 3; axis++)
            packed.position_ids[axis * seq_len + i] = (int32_t)at;
        if (at == 0) {
            packed.cu_seqlens[i / document] = (int32_t)i;
            packed.doc_sample_id[i / document] = (uint64_t)(number * packed.n_docs + i / document);
        }
    }
    packed.cu_seqlens[packed.n_docs] = (int32_t)seq_len;
    packed.cursor = "{}";
    packed.quarantine = "[]";
    *out = packed;
    return ST_OK;
}

/* Writes the WELCOME message with the shapes of the rows, as a daemon's plan would, because a GPU
 * chooses its kernels by the shapes that may come. If there is room for pictures, the contents of a
 * row are left open. */
static void tell_shapes(char *out, size_t size, int64_t seq_len, int64_t document,
                        int64_t patch_budget)
{
    size_t count = words_add(out, size, 0, "{\"seq_len\":%" PRId64 ",\"patch_budget\":%" PRId64,
                             seq_len, patch_budget);
    if (patch_budget == 0)
        count = words_add(out, size, count,
                          ",\"buckets\":[{\"tokens\":%" PRId64 ",\"patches\":0,\"targets\":%" PRId64
                          ",\"documents\":%" PRId64 ",\"longest\":%" PRId64
                          ",\"images\":0,\"frames\":0}]",
                          seq_len, seq_len, documents(seq_len, document),
                          document < seq_len ? document : seq_len);
    words_add(out, size, count, "}");
}

status text_rows_record(const char *path, const model_dims *dims, int64_t rows, int64_t seq_len,
                        int64_t document, int64_t patch_budget)
{
    record_writer *writer = NULL;
    codec *coder = NULL;
    wire_msg *message = NULL;
    arena memory;
    char welcome[512];
    status st = ST_OK;
    arena_init(&memory, 0);
    document = document > 0 ? document : seq_len;
    tell_shapes(welcome, sizeof welcome, seq_len, document, patch_budget);
    TRY_OR(done, record_create(path, welcome, &writer));
    TRY_OR(done, codec_new(&coder));
    TRY_OR(done, wire_msg_new(&message));
    for (int64_t i = 0; i < rows; i++) {
        row packed;
        arena_reset(&memory);
        wire_msg_clear(message);
        TRY_OR(done, make_row(dims, i, seq_len, document, &memory, &packed));
        TRY_OR(done, codec_encode(coder, &packed, (uint64_t)i, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE,
                                  message));
        TRY_OR(done, record_add(writer, message));
    }
    st = record_finish(&writer);
done:
    record_abandon(&writer);
    wire_msg_free(&message);
    codec_free(&coder);
    arena_done(&memory);
    return st;
}

status text_rows_own(const conf *options, const model_dims *dims, int64_t document,
                     char path[STATUS_PATH_MAX])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, STATUS_PATH_MAX, "%s/bench-rows-%ld.rec", folder && *folder ? folder : "/tmp",
             (long)getpid());
    return text_rows_record(path, dims, 2 * options->training_global_batch_size,
                            options->training_seq_len, document, 0);
}
