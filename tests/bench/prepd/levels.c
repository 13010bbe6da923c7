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
#include "proto/client.h"
#include "proto/filter.h"
#include "tests/bench/prepd/turns.h"

enum { MOST_ROUNDS = 99, MOST_IMAGES = 4096 };

typedef struct setting {
    const char *name;
    int level;
    ZSTD_paramSwitch_e literals; /* whether bytes outside matches are Huffman-coded */
} setting;

/* The first is what prepd uses (proto/zstd_frames.c). */
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
    const uint8_t *pixels[MOST_IMAGES]; /* [n] of [patches, 768] u8 */
    int64_t patches[MOST_IMAGES];
    int64_t n, bytes, largest;
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
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t check_zstd(size_t code)
{
    if (ZSTD_isError(code))
        must(FAIL(ST_INTERNAL, "zstd: %s", ZSTD_getErrorName(code)));
    return code;
}

static void collect_pictures(const row *r, pictures *p)
{
    const uint8_t *at = r->pixels;
    for (int64_t i = 0; i < r->n_items && p->n < MOST_IMAGES; i++) {
        const int32_t *g = r->grid_thw + 3 * i;
        const int64_t patches = (int64_t)g[0] * g[1] * g[2];
        p->pixels[p->n] = at;
        p->patches[p->n++] = patches;
        p->bytes += 768 * patches;
        p->largest = patches > p->largest ? patches : p->largest;
        at += 768 * patches;
    }
}

static void one_turn(const setting *s, bool filter, const pictures *p, tools *t, int round, cost *c)
{
    double press_s = 0, open = 0;
    check_zstd(ZSTD_CCtx_reset(t->compress, ZSTD_reset_session_and_parameters));
    check_zstd(
        ZSTD_CCtx_setParameter(t->compress, ZSTD_c_literalCompressionMode, (int)s->literals));
    check_zstd(ZSTD_CCtx_setParameter(t->compress, ZSTD_c_compressionLevel, s->level));
    c->sent = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const size_t bytes = 768 * (size_t)p->patches[i];
        const uint8_t *in = p->pixels[i];
        const double began = cpu_s();
        if (filter) {
            filter_plane_apply(in, p->patches[i], 1, t->filtered);
            in = t->filtered;
        }
        const size_t sent = check_zstd(ZSTD_compress2(t->compress, t->pressed, t->room, in, bytes));
        const double middle = cpu_s();
        check_zstd(ZSTD_decompressDCtx(t->open, filter ? t->filtered : t->opened, bytes, t->pressed,
                                       sent));
        if (filter)
            filter_plane_undo(t->filtered, p->patches[i], 1, t->opened);
        open += cpu_s() - middle;
        press_s += middle - began;
        c->sent += (int64_t)sent;
        if (memcmp(t->opened, p->pixels[i], bytes) != 0)
            must(FAIL(ST_INTERNAL, "zstd %s: other pixels came back", s->name));
    }
    c->press_s[round] = press_s;
    c->open_s[round] = open;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare_reals);
    return v[n / 2];
}

int main(int argc, char **argv)
{
    static pictures p;
    static cost costs[2][N_SETTINGS];
    client *c = NULL;
    arena a;
    const int rows = argc == 4 ? atoi(argv[2]) : 0, rounds = argc == 4 ? atoi(argv[3]) : 0;
    if (rows < 1 || rounds < 1 || rounds > MOST_ROUNDS)
        must(FAIL(ST_USAGE, "bench_levels RECORDING ROWS ROUNDS"));
    must(client_replay(&(replay_options){.path = argv[1]}, &c));
    arena_init(&a, 0);
    for (int i = 0; i < rows; i++) {
        row r;
        must(client_next(c, &a, &r, NULL, NULL));
        collect_pictures(&r, &p);
    }
    tools t = {.compress = ZSTD_createCCtx(), .open = ZSTD_createDCtx()};
    t.room = ZSTD_compressBound(768 * (size_t)p.largest);
    t.filtered = malloc(t.room);
    t.pressed = malloc(t.room);
    t.opened = malloc(t.room);
    if (!t.compress || !t.open || !t.filtered || !t.pressed || !t.opened || p.n == 0)
        must(FAIL(ST_NO_MEMORY, "no memory, or no pictures in the recording"));
    for (int round = 0; round < rounds; round++)
        for (int filter = 0; filter < 2; filter++)
            for (int s = 0; s < N_SETTINGS; s++)
                one_turn(&settings[s], filter, &p, &t, round, &costs[filter][s]);
    printf("%lld pictures, %.1f MB of pixels, %d rounds, medians\n\n", (long long)p.n,
           (double)p.bytes / 1e6, rounds);
    printf("%-7s %-14s %6s %12s %12s\n", "filter", "zstd", "ratio", "press GB/s", "open GB/s");
    for (int filter = 1; filter >= 0; filter--)
        for (int s = 0; s < N_SETTINGS; s++) {
            cost *k = &costs[filter][s];
            printf("%-7s %-14s %6.2f %12.2f %12.2f\n", filter ? "plane" : "none", settings[s].name,
                   (double)p.bytes / (double)k->sent,
                   (double)p.bytes * 1e-9 / median(k->press_s, rounds),
                   (double)p.bytes * 1e-9 / median(k->open_s, rounds));
        }
    ZSTD_freeCCtx(t.compress);
    ZSTD_freeDCtx(t.open);
    free(t.filtered);
    free(t.pressed);
    free(t.opened);
    arena_done(&a);
    client_close(&c);
    return 0;
}
