/* SPDX-License-Identifier: Apache-2.0 */
/* open_rows.c: measures what the receiving side of a stream costs: rows of a recording are checked,
 * decompressed and unfiltered on one core.
 *
 *   bench_open RECORDING ROWS
 *
 * A turn opens ROWS rows. It counts bytes of pixels and images. */
#include <time.h>

#include "common/base/clock.h"
#include "proto/session/client.h"
#include "tests/bench/prepd/turns.h"

static int64_t own_cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int argc, char **argv)
{
    client *consumer = NULL;
    arena memory;
    if (argc != 3)
        must(FAIL(ST_USAGE, "bench_open RECORDING ROWS"));
    must(client_replay(&(replay_options){.path = argv[1]}, &consumer));
    arena_init(&memory, 0);
    while (turn_begins()) {
        int64_t images = 0, bytes = 0;
        const int64_t wall = clock_ns(), cpu = own_cpu();
        for (int i = 0; i < atoi(argv[2]); i++) {
            row packed;
            arena_reset(&memory);
            must(client_next(consumer, &memory, &packed, NULL, NULL));
            images += packed.n_items;
            bytes += 768 * packed.n_patches + 1536 * packed.n_video_patches;
        }
        turn_ends(images, clock_ns() - wall, own_cpu() - cpu, bytes);
    }
    arena_done(&memory);
    client_close(&consumer);
    return 0;
}
