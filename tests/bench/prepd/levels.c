/* SPDX-License-Identifier: Apache-2.0 */
/* levels.c: compares zstd's settings for pixels. Every setting compresses the pictures of a
 * recording and decompresses them again, with and without the plane filter before it. The settings
 * take turns; CPU time is that of one thread.
 *
 *   bench_levels RECORDING ROWS ROUNDS        RECORDING: made with filter and codec none
 *
 * Prints a line per filter and setting: bytes of pixels per byte sent; GB of pixels filtered and
 * compressed per CPU second; GB decompressed and unfiltered per CPU second. */
#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode */
#include <string.h>
#include <time.h>
#include <zstd.h>

#include "common/base/compare.h"
#include "proto/session/client.h"
#include "proto/message/filter.h"
#include "tests/bench/prepd/turns.h"

enum { MOST_ROUNDS = 99, MOST_IMAGES = 4096 };

typedef struct setting {
    const char *name;
    int level;
    ZSTD_paramSwitch_e literals; /* whether bytes outside matches are Huffman-coded */
} setting;

/* The first is what prepd uses (proto/message/zstd_frames.c). */
static const setting settings[] = {
    {"literals only", -131072, ZSTD_ps_enable},
    {"-5", -5, ZSTD_ps_auto},
    {"-1", -1, ZSTD_ps_auto},
    {"1", 1, ZSTD_ps_auto},
    {"3", 3, ZSTD_ps_auto},
    {"6", 6, ZSTD_ps_auto},
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

typedef struct pictures {
    const uint8_t *pixels[MOST_IMAGES]; /* [count] of [patches, 768] u8 */
    int64_t patches[MOST_IMAGES];
    int64_t count, bytes, largest;
} pictures;

typedef struct tools {
    ZSTD_CCtx *compress;
    ZSTD_DCtx *open;
    uint8_t *filtered, *pressed, *opened; /* each with room for the largest picture */
    size_t room;
} tools;

typedef struct cost {
    double press_s[MOST_ROUNDS], open_s[MOST_ROUNDS];
    int64_t sent;
} cost;

static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static size_t check_zstd(size_t code)
{
    if (ZSTD_isError(code))
        must(FAIL(ST_INTERNAL, "zstd: %s", ZSTD_getErrorName(code)));
    return code;
}

static void collect_pictures(const row *packed, pictures *images)
{
    const uint8_t *at = packed->pixels;
    for (int64_t i = 0; i < packed->n_items && images->count < MOST_IMAGES; i++) {
        const int32_t *grid = packed->grid_thw + 3 * i;
        const int64_t patches = (int64_t)grid[0] * grid[1] * grid[2];
        images->pixels[images->count] = at;
        images->patches[images->count++] = patches;
        images->bytes += 768 * patches;
        images->largest = patches > images->largest ? patches : images->largest;
        at += 768 * patches;
    }
}

static void one_turn(const setting *setup, bool filter, const pictures *images, tools *held,
                     int round, cost *price)
{
    double press_s = 0, open = 0;
    check_zstd(ZSTD_CCtx_reset(held->compress, ZSTD_reset_session_and_parameters));
    check_zstd(ZSTD_CCtx_setParameter(held->compress, ZSTD_c_literalCompressionMode,
                                      (int)setup->literals));
    check_zstd(ZSTD_CCtx_setParameter(held->compress, ZSTD_c_compressionLevel, setup->level));
    price->sent = 0;
    for (int64_t i = 0; i < images->count; i++) {
        const size_t bytes = 768 * (size_t)images->patches[i];
        const uint8_t *in = images->pixels[i];
        const double began = cpu_s();
        if (filter) {
            filter_plane_apply(in, images->patches[i], 1, held->filtered);
            in = held->filtered;
        }
        const size_t sent =
            check_zstd(ZSTD_compress2(held->compress, held->pressed, held->room, in, bytes));
        const double middle = cpu_s();
        check_zstd(ZSTD_decompressDCtx(held->open, filter ? held->filtered : held->opened, bytes,
                                       held->pressed, sent));
        if (filter)
            filter_plane_undo(held->filtered, images->patches[i], 1, held->opened);
        open += cpu_s() - middle;
        press_s += middle - began;
        price->sent += (int64_t)sent;
        if (memcmp(held->opened, images->pixels[i], bytes) != 0)
            must(FAIL(ST_INTERNAL, "zstd %s: other pixels came back", setup->name));
    }
    price->press_s[round] = press_s;
    price->open_s[round] = open;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare_reals);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static pictures images;
    static cost costs[2][N_SETTINGS];
    client *consumer = NULL;
    arena memory;
    const int rows = argc == 4 ? atoi(argv[2]) : 0, rounds = argc == 4 ? atoi(argv[3]) : 0;
    if (rows < 1 || rounds < 1 || rounds > MOST_ROUNDS)
        must(FAIL(ST_USAGE, "bench_levels RECORDING ROWS ROUNDS"));
    must(client_replay(&(replay_options){.path = argv[1]}, &consumer));
    arena_init(&memory, 0);
    for (int i = 0; i < rows; i++) {
        row packed;
        must(client_next(consumer, &memory, &packed, NULL, NULL));
        collect_pictures(&packed, &images);
    }
    tools held = {.compress = ZSTD_createCCtx(), .open = ZSTD_createDCtx()};
    held.room = ZSTD_compressBound(768 * (size_t)images.largest);
    held.filtered = malloc(held.room);
    held.pressed = malloc(held.room);
    held.opened = malloc(held.room);
    if (!held.compress || !held.open || !held.filtered || !held.pressed || !held.opened ||
        images.count == 0)
        must(FAIL(ST_NO_MEMORY, "no memory, or no pictures in the recording"));
    for (int round = 0; round < rounds; round++)
        for (int filter = 0; filter < 2; filter++)
            for (int place = 0; place < N_SETTINGS; place++)
                one_turn(&settings[place], filter, &images, &held, round, &costs[filter][place]);
    printf("%lld pictures, %.1f MB of pixels, %d rounds, medians\n\n", (long long)images.count,
           (double)images.bytes / 1e6, rounds);
    printf("%-7s %-14s %6s %12s %12s\n", "filter", "zstd", "ratio", "press GB/s", "open GB/s");
    for (int filter = 1; filter >= 0; filter--)
        for (int place = 0; place < N_SETTINGS; place++) {
            cost *price = &costs[filter][place];
            printf("%-7s %-14s %6.2f %12.2f %12.2f\n", filter ? "plane" : "none",
                   settings[place].name, (double)images.bytes / (double)price->sent,
                   (double)images.bytes * 1e-9 / median(price->press_s, rounds),
                   (double)images.bytes * 1e-9 / median(price->open_s, rounds));
        }
    ZSTD_freeCCtx(held.compress);
    ZSTD_freeDCtx(held.open);
    free(held.filtered);
    free(held.pressed);
    free(held.opened);
    arena_done(&memory);
    client_close(&consumer);
    return 0;
}
