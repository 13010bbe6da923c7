/* SPDX-License-Identifier: Apache-2.0 */
/* tag_cost.c: measures what the check of its tag is of the time in which a receiver opens a row.
 *
 *   bench_tags RECORDING ROUNDS
 *
 * Every round opens all rows of the recording, each at once with its tag and then the tag alone
 * several times more, since looking at the clock takes about as long. Prints the rows, the bytes of
 * a tag, the CPU nanoseconds of a row, those of its tag, and the share of the second in the first,
 * medians of the rounds. */
#include <time.h>

#include "common/base/compare.h"
#include "proto/message/codec.h"
#include "proto/message/record.h"
#include "proto/row/tag.h"
#include "tests/bench/prepd/turns.h"

enum { MOST_ROUNDS = 1000, TIMES = 8 };

typedef struct figures {
    int64_t row_ns, tag_ns;
} figures;

static int64_t own_cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static figures open_row(codec *coder, const wire_msg *message, arena *memory)
{
    row packed;
    frame head;
    arena_reset(memory);
    const int64_t begun = own_cpu();
    must(codec_decode(coder, message, "recording", memory, &packed, &head));
    const int64_t opened = own_cpu();
    for (int time = 0; time < TIMES; time++)
        must(tag_apply(wire_msg_part(message, wire_msg_parts(message) - 1), &head, "recording",
                       memory, &packed));
    return (figures){opened - begun, (own_cpu() - opened) / TIMES};
}

static int64_t median(int64_t *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_ints);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static int64_t row_ns[MOST_ROUNDS], tag_ns[MOST_ROUNDS];
    record_reader *reader = NULL;
    wire_msg *message = NULL;
    codec *coder = NULL;
    arena memory;
    size_t bytes = 0;
    const int rounds = argc == 3 ? atoi(argv[2]) : 0;
    if (rounds < 1 || rounds > MOST_ROUNDS)
        must(FAIL(ST_USAGE, "bench_tags RECORDING ROUNDS, at most %d", MOST_ROUNDS));
    must(record_open(argv[1], &reader));
    if (record_rows(reader) == 0)
        must(FAIL_IN(ST_BAD_INPUT, argv[1], "it has no rows"));
    must(codec_new(&coder));
    must(wire_msg_new(&message));
    arena_init(&memory, 0);
    const int64_t rows = (int64_t)record_rows(reader);
    for (int round = 0; round < rounds; round++)
        for (uint64_t i = 0; i < (uint64_t)rows; i++) {
            wire_msg_clear(message);
            must(record_read(reader, i, message));
            const figures took = open_row(coder, message, &memory);
            row_ns[round] += took.row_ns / rows;
            tag_ns[round] += took.tag_ns / rows;
            bytes += round ? 0 : wire_msg_part(message, wire_msg_parts(message) - 1).size;
        }
    const int64_t whole = median(row_ns, rounds), part = median(tag_ns, rounds);
    printf("%lld rows, %lld bytes of tag each: %.1f us a row, %.1f us its tag, %.2f %%\n",
           (long long)rows, (long long)bytes / (long long)rows, (double)whole / 1e3,
           (double)part / 1e3, 100.0 * (double)part / (double)whole);
    arena_done(&memory);
    wire_msg_free(&message);
    codec_free(&coder);
    record_close(&reader);
    return 0;
}
