/* feed.c: prepd's server of recordings (prepd/serve/recorded.h) as a program of its own, for
 * machines that lack what the rest of prepd is built with.
 *
 *   bench_feed ENDPOINT RECORDING */
#include <stdio.h>

#include "common/program/log.h"
#include "prepd/serve/recorded.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "bench_feed ENDPOINT RECORDING\n");
        return 64;
    }
    log_init("feed", LOG_INFO, false);
    const recorded_options options = {
        .path = argv[2], .endpoint = argv[1], .keys = "", .buffer_bytes = INT64_C(4) << 30};
    status st = recorded_serve(&options);
    if (st != ST_OK)
        fprintf(stderr, "bench_feed: %s\n", status_text());
    return status_exit_code(st);
}
