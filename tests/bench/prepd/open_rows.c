/* open_rows.c: measures what the receiving side of a stream costs: rows of a recording are checked,
 * decompressed and unfiltered on one core.
 *
 *   bench_open RECORDING ROWS
 *
 * A turn opens ROWS rows. It counts bytes of pixels and images. */
#include <time.h>

#include "common/base/clock.h"
#include "proto/client.h"
#include "tests/bench/prepd/turns.h"

static int64_t own_cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    client *c = NULL;
    arena a;
    if (argc != 3)
        must(FAIL(ST_USAGE, "bench_open RECORDING ROWS"));
    must(client_replay(&(replay_options){.path = argv[1]}, &c));
    arena_init(&a, 0);
    while (turn_begins()) {
        int64_t images = 0, bytes = 0;
        const int64_t wall = clock_ns(), cpu = own_cpu();
        for (int i = 0; i < atoi(argv[2]); i++) {
            row r;
            arena_reset(&a);
            must(client_next(c, &a, &r, NULL, NULL));
            images += r.n_items;
            bytes += 768 * r.n_patches + 1536 * r.n_video_patches;
        }
        turn_ends(images, clock_ns() - wall, own_cpu() - cpu, bytes);
    }
    arena_done(&a);
    client_close(&c);
    return 0;
}
