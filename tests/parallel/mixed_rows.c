/* SPDX-License-Identifier: Apache-2.0 */
/* mixed_rows.c: makes a recording in which rows of text are mixed with rows of images: mixed_rows
 * MODEL IN OUT.
 *
 * There are STEP rows to a step. In the first step every second row is text, in the second step all
 * are, in the third all but one. After that all rows have images, except the last row of each step,
 * which is empty. In every third text row the first document is the prefix of the other two. */
#include "proto/message/codec.h"
#include "proto/message/record.h"
#include "tests/unit/proto/seeded_rows.h"
#include "tests/unit/trainer/model/fixture.h"

enum { STEP = 8 };
/* It names no shape buckets, since those of the recorded stream do not fit text and empty rows. */
static const char welcome[] = "{\"seq_len\":256,\"patch_budget\":1024}";

static bool is_text(uint64_t index)
{
    uint64_t step = index / STEP, at = index % STEP;
    return step == 0 ? at % 2 == 1 : step == 1 || (step == 2 && at != 3);
}

static void add_row(record_writer *recording, codec *coder, const row *packed, uint64_t number)
{
    wire_msg *message = NULL;
    assert_ok(wire_msg_new(&message));
    assert_ok(codec_encode(coder, packed, number, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, message));
    assert_ok(record_add(recording, message));
    wire_msg_free(&message);
}

/* Maps the token ids to ids of ordinary text. */
static void fit_words(row *packed, const model_dims *dims)
{
    const int32_t words = 256; /* below all special tokens of prepd synth's model */
    assert_true(dims->text.vocab > words);
    for (int64_t token = 0; token < packed->n_tokens; token++) {
        packed->input_ids[token] %= words;
        if (packed->labels[token] != NO_LABEL)
            packed->labels[token] %= words;
    }
}

int main(int argc, char **argv)
{
    fixture setup;
    model_dims dims;
    record_reader *in;
    record_writer *out;
    codec *coder;
    wire_msg *message = NULL;
    if (argc != 4)
        return 64;
    assert_ok(dims_load(argv[1], &dims));
    fixture_open(&setup, &dims);
    assert_ok(codec_new(&coder));
    assert_ok(wire_msg_new(&message));
    assert_ok(record_open(argv[2], &in));
    assert_ok(record_create(argv[3], welcome, &out));
    for (uint64_t i = 0; i < record_rows(in); i++) {
        const document text[] = {{"30", i}, {"9", i + 100}, {"70", i + 200}};
        row packed = fixture_row(&setup, text, 1 + (int)(i % 3), i % 2 == 0);
        fit_words(&packed, &dims);
        if (packed.n_docs == 3)
            row_make_prefix(&packed, &setup.rows);
        if (i / STEP > 2 && i % STEP == STEP - 1)
            assert_ok(row_alloc(memset(&packed, 0, sizeof packed), &setup.rows, 0));
        else if (!is_text(i)) {
            assert_ok(record_read(in, i, message));
            assert_ok(record_add(out, message));
            continue;
        }
        packed.cursor = "{}";
        packed.quarantine = "[]";
        add_row(out, coder, &packed, i);
    }
    assert_ok(record_finish(&out));
    record_close(&in);
    wire_msg_free(&message);
    codec_free(&coder);
    fixture_close(&setup);
    return 0;
}
