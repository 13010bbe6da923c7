/* mixed_rows.c: makes a recording in which rows of text are mixed with rows of images: mixed_rows
 * MODEL IN OUT.
 *
 * There are STEP rows to a step. In the first step every second row is text, in the second step all
 * are, in the third all but one. After that all rows have images, except the last row of each step,
 * which is empty. In every third text row the first document is the prefix of the other two. */
#include "proto/codec.h"
#include "proto/record.h"
#include "tests/unit/proto/seeded_rows.h"
#include "tests/unit/trainer/model/fixture.h"

enum { STEP = 8 };
/* It names no shape buckets, since those of the recorded stream do not fit text and empty rows. */
static const char welcome[] = "{\"seq_len\":256,\"patch_budget\":1024}";

static bool is_text(uint64_t i)
{
    uint64_t step = i / STEP, at = i % STEP;
    return step == 0 ? at % 2 == 1 : step == 1 || (step == 2 && at != 3);
}

static void add_row(record_writer *w, codec *c, const row *r, uint64_t number)
{
    wire_msg *m = NULL;
    assert_ok(wire_msg_new(&m));
    assert_ok(codec_encode(c, r, number, IMAGE_FILTER_NONE, IMAGE_CODEC_NONE, m));
    assert_ok(record_add(w, m));
    wire_msg_free(&m);
}

/* Maps the token ids to ids of ordinary text. */
static void fit_words(row *r, const model_dims *d)
{
    const int32_t words = 256; /* below all special tokens of prepd synth's model */
    assert_true(d->text.vocab > words);
    for (int64_t t = 0; t < r->n_tokens; t++) {
        r->input_ids[t] %= words;
        if (r->labels[t] != NO_LABEL)
            r->labels[t] %= words;
    }
}

int main(int argc, char **argv)
{
    fixture f;
    model_dims d;
    record_reader *in;
    record_writer *out;
    codec *c;
    wire_msg *m = NULL;
    if (argc != 4)
        return 64;
    assert_ok(dims_load(argv[1], &d));
    fixture_open(&f, &d);
    assert_ok(codec_new(&c));
    assert_ok(wire_msg_new(&m));
    assert_ok(record_open(argv[2], &in));
    assert_ok(record_create(argv[3], welcome, &out));
    for (uint64_t i = 0; i < record_rows(in); i++) {
        const document text[] = {{"30", i}, {"9", i + 100}, {"70", i + 200}};
        row r = fixture_row(&f, text, 1 + (int)(i % 3), i % 2 == 0);
        fit_words(&r, &d);
        if (r.n_docs == 3)
            row_make_prefix(&r, &f.rows);
        if (i / STEP > 2 && i % STEP == STEP - 1)
            assert_ok(row_alloc(memset(&r, 0, sizeof r), &f.rows, 0));
        else if (!is_text(i)) {
            assert_ok(record_read(in, i, m));
            assert_ok(record_add(out, m));
            continue;
        }
        r.cursor = "{}";
        r.quarantine = "[]";
        add_row(out, c, &r, i);
    }
    assert_ok(record_finish(&out));
    record_close(&in);
    wire_msg_free(&m);
    codec_free(&c);
    fixture_close(&f);
    return 0;
}
