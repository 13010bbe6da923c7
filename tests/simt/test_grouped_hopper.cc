/* test_grouped_hopper.cc: the grouped product's kernel for Hopper, run on the host instruction by
 * instruction (hopper_host.h) and compared with plain loops: every mode, ragged and empty groups,
 * widths that do not fill a tile, garbage beyond the groups, and any order of threads and loads. */
#include "tests/simt/hopper_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "trainer/ops/cuda/grouped_hopper.cuh"

struct problem {
    int mode;
    int32_t k, n;
    std::vector<int32_t> rows; /* of each expert */
    int spare;                 /* rows beyond the last */
    int clusters;
    bool gated, dropped; /* gated: FWD with SwiGLU; dropped: y is not wanted */
};

struct call {
    CUtensorMap a, b;
    grouped_work w;
    const int32_t *offset;
    grouped_out out;
};

static void kernel(void *context)
{
    const call *c = (const call *)context;
    switch (c->w.mode) {
    case GROUPED_FWD:
        return grouped_block<GROUPED_FWD>(c->w, hopper_shared(), &c->a, &c->b, c->offset, c->out);
    case GROUPED_DGRAD:
        return grouped_block<GROUPED_DGRAD>(c->w, hopper_shared(), &c->a, &c->b, c->offset, c->out);
    default:
        return grouped_block<GROUPED_WGRAD>(c->w, hopper_shared(), &c->a, &c->b, c->offset, c->out);
    }
}

/* Small whole numbers: products and sums are exact in float, so results must be equal. */
static uint16_t draw_bf16(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return __float2bfloat16_rn((float)((int)(*state >> 40) % 9 - 4)).bits;
}

static float widen_bits(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

struct arrays {
    std::vector<uint16_t> x, w, y, gated;
    std::vector<float> dw;
    std::vector<int32_t> offset;
    int64_t rows_cap;
};

static arrays make_arrays(const problem &p, uint64_t seed)
{
    const uint16_t nan = 0x7fff;
    arrays a;
    size_t experts = p.rows.size(), k = (size_t)p.k, n = (size_t)p.n;
    a.offset.assign(experts + 1, 0);
    for (size_t e = 0; e < experts; e++)
        a.offset[e + 1] = a.offset[e] + p.rows[e];
    a.rows_cap = a.offset[experts] + p.spare;
    a.x.assign((size_t)a.rows_cap * k, nan);
    a.y.assign((size_t)a.rows_cap * n, nan);
    a.gated.assign((size_t)a.rows_cap * n / 2, nan);
    a.w.resize(experts * k * n);
    a.dw.resize(experts * k * n);
    for (size_t i = 0; i < (size_t)a.offset[experts] * k; i++)
        a.x[i] = draw_bf16(&seed);
    for (size_t i = 0; i < (size_t)a.offset[experts] * n; i++)
        a.y[i] = draw_bf16(&seed);
    for (auto &v : a.w)
        v = draw_bf16(&seed);
    for (auto &v : a.dw)
        v = widen_bits(draw_bf16(&seed));
    return a;
}

/* The specification, as plain loops. Elements that it does not write stay as they are. */
static arrays reference(const problem &p, const arrays &from)
{
    arrays a = from;
    size_t k = (size_t)p.k, n = (size_t)p.n;
    for (size_t e = 0; e < p.rows.size(); e++)
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < n && p.mode == GROUPED_WGRAD; j++)
                for (size_t r = (size_t)a.offset[e]; r < (size_t)a.offset[e + 1]; r++)
                    a.dw[(e * k + i) * n + j] +=
                        widen_bits(a.x[r * k + i]) * widen_bits(a.y[r * n + j]);
    for (size_t e = 0; e < p.rows.size() && p.mode != GROUPED_WGRAD; e++)
        for (size_t r = (size_t)a.offset[e]; r < (size_t)a.offset[e + 1]; r++) {
            bool fwd = p.mode == GROUPED_FWD;
            size_t width = fwd ? n : k, reduced = fwd ? k : n;
            for (size_t o = 0; o < width; o++) {
                float sum = 0;
                for (size_t i = 0; i < reduced; i++)
                    sum += widen_bits(fwd ? from.x[r * k + i] : from.y[r * n + i]) *
                           widen_bits(a.w[(e * k + (fwd ? i : o)) * n + (fwd ? o : i)]);
                (fwd ? a.y : a.x)[r * width + o] = __float2bfloat16_rn(sum).bits;
            }
            for (size_t o = 0; o < n / 2 && p.gated; o++)
                a.gated[r * n / 2 + o] =
                    __float2bfloat16_rn(
                        swiglu(widen_bits(a.y[r * n + o]), widen_bits(a.y[r * n + n / 2 + o])))
                        .bits;
        }
    if (p.dropped)
        a.y = from.y;
    return a;
}

static CUtensorMap map_of(const std::vector<uint16_t> &v, int64_t width, int64_t rows,
                          int64_t depth, const grouped_operand &o)
{
    return CUtensorMap{v.data(), width, rows, depth, o.box_bytes / 128};
}

static void run_problem(const problem &p, arrays *a, uint64_t order)
{
    grouped_gemm_args args = {};
    args.mode = p.mode;
    args.experts = (int64_t)p.rows.size();
    args.k = p.k;
    args.n = p.n;
    args.rows_cap = a->rows_cap;
    args.gated = p.gated ? a->gated.data() : NULL;
    call c = {};
    c.w = grouped_work_of(&args, GROUPED_TILE_N, GROUPED_STEP, GROUPED_BLOCKS);
    c.offset = a->offset.data();
    const grouped_operand oa = grouped_a(p.mode), ob = grouped_b(p.mode);
    bool wgrad = p.mode == GROUPED_WGRAD;
    c.a = p.mode == GROUPED_DGRAD ? map_of(a->y, p.n, a->rows_cap, 1, oa)
                                  : map_of(a->x, p.k, a->rows_cap, 1, oa);
    c.b = wgrad ? map_of(a->y, p.n, a->rows_cap, 1, ob) : map_of(a->w, p.n, p.k, args.experts, ob);
    c.out.y = wgrad                   ? (void *)a->dw.data()
              : p.mode == GROUPED_FWD ? (void *)a->y.data()
                                      : (void *)a->x.data();
    c.out.y = p.dropped ? NULL : c.out.y;
    c.out.gated = args.gated;
    hopper_run(p.clusters * GROUPED_BLOCKS, GROUPED_BLOCKS, GROUPED_THREADS,
               (size_t)grouped_shared_bytes(c.w.experts), order, kernel, &c);
}

template <class T>
static int compare_arrays(const char *name, const problem &p, uint64_t order,
                          const std::vector<T> &got, const std::vector<T> &want, int64_t width)
{
    for (size_t i = 0; i < got.size(); i++)
        if (memcmp(&got[i], &want[i], sizeof(T)) != 0) {
            fprintf(stderr,
                    "%s: order %llu, mode %d, k %d, n %d: row %lld, column %lld is %g, wanted %g\n",
                    name, (unsigned long long)order, p.mode, p.k, p.n,
                    (long long)((int64_t)i / width), (long long)((int64_t)i % width),
                    sizeof(T) == 2 ? (double)widen_bits((uint16_t)got[i]) : (double)got[i],
                    sizeof(T) == 2 ? (double)widen_bits((uint16_t)want[i]) : (double)want[i]);
            return 1;
        }
    return 0;
}

static int check_problem(const char *name, const problem &p, uint64_t order)
{
    arrays a = make_arrays(p, 17), want = reference(p, a);
    run_problem(p, &a, order);
    int bad = compare_arrays(name, p, order, a.x, want.x, p.k) +
              compare_arrays(name, p, order, a.y, want.y, p.n) +
              compare_arrays(name, p, order, a.gated, want.gated, p.n / 2) +
              compare_arrays(name, p, order, a.dw, want.dw, p.n);
    if (bad == 0)
        printf("ok %s, order %llu\n", name, (unsigned long long)order);
    return bad;
}

/* At the published widths, with rows spread over the experts in many ways: each tile of the output
 * belongs to one block, no tile reaches into another expert, and the blocks of a cluster agree on
 * what they share. */
static int check_cover(const char *name, int mode, int64_t k, int64_t n,
                       const std::vector<int32_t> &rows, int blocks)
{
    grouped_gemm_args args = {};
    args.mode = mode;
    args.experts = (int64_t)rows.size();
    args.k = k;
    args.n = n;
    std::vector<int32_t> first(rows.size() + 1), begin(rows.size() + 1);
    for (size_t e = 0; e < rows.size(); e++) {
        first[e + 1] = first[e] + grouped_units(mode, rows[e]);
        begin[e + 1] = begin[e] + rows[e];
    }
    args.rows_cap = begin[rows.size()];
    grouped_work w = grouped_work_of(&args, GROUPED_TILE_N, GROUPED_STEP, blocks);
    int32_t across = grouped_ceil(w.out_n, w.tile_n);
    /* How often each tile is stored: rows of the output, expert by expert, times columns of tiles.
     */
    int64_t height = mode == GROUPED_WGRAD ? w.out_m * args.experts : args.rows_cap;
    std::vector<uint8_t> stored((size_t)(height * across));
    int bad = 0;
    for (int64_t at = 0; at < grouped_tiles(&w, first[rows.size()]); at++) {
        grouped_tile t[2];
        for (int rank = 0; rank < blocks; rank++) {
            t[rank] = grouped_tile_at(&w, first.data(), begin.data(), at, rank);
            const grouped_tile &x = t[rank];
            int64_t top = mode == GROUPED_WGRAD ? (int64_t)x.expert * w.out_m + x.m : x.m;
            int64_t end = mode == GROUPED_WGRAD ? (int64_t)(x.expert + 1) * w.out_m
                                                : (int64_t)begin[x.expert + 1];
            bad += x.valid > 0 && (top + x.valid > end || x.row < begin[x.expert]);
            for (int32_t r = 0; r < x.valid; r++)
                stored[(size_t)((top + r) * across + x.n / w.tile_n)]++;
        }
        if (blocks == 2)
            bad += t[0].steps != t[1].steps || t[0].shared != t[1].shared || t[0].n != t[1].n ||
                   (t[0].shared && t[0].expert != t[1].expert);
    }
    for (size_t i = 0; i < stored.size(); i++) {
        int64_t row = (int64_t)i / across;
        bool wanted = mode != GROUPED_WGRAD || rows[(size_t)(row / w.out_m)] > 0;
        bad += stored[i] != wanted;
    }
    if (bad)
        fprintf(stderr, "%s, mode %d, %d blocks: %d tiles are wrong\n", name, mode, blocks, bad);
    return bad != 0;
}

static int check_covers(void)
{
    std::vector<int32_t> uneven(128), one(128), even(128, 384), none(128), last(128);
    uint64_t seed = 5;
    for (size_t e = 0; e < uneven.size(); e++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uneven[e] = e % 7 == 3 ? 0 : (int32_t)(seed >> 33) % 900;
    }
    one[77] = 40000;
    last[127] = 1;
    const struct {
        const char *name;
        const std::vector<int32_t> &rows;
    } loads[] = {{"uneven", uneven},
                 {"all on one", one},
                 {"even", even},
                 {"no rows", none},
                 {"one row", last}};
    int bad = 0;
    for (auto &load : loads)
        for (int mode = GROUPED_FWD; mode <= GROUPED_WGRAD; mode++)
            for (int blocks = 1; blocks <= 2; blocks++) {
                bad += check_cover(load.name, mode, 2048, 1536, load.rows, blocks);
                bad += check_cover(load.name, mode, 768, 2048, load.rows, blocks);
                bad += check_cover(load.name, mode, 136, 264, load.rows, blocks);
            }
    if (bad == 0)
        printf("ok every tile once\n");
    return bad;
}

int main(void)
{
    const problem problems[] = {
        {GROUPED_FWD, 136, 264, {130, 0, 5, 300, 1}, 40, 2, false, false},
        {GROUPED_DGRAD, 136, 200, {129, 0, 128, 1}, 3, 1, false, false},
        {GROUPED_WGRAD, 136, 264, {70, 0, 64, 1}, 40, 1, false, false},
        {GROUPED_FWD, 64, 8, {0, 0, 257, 0}, 0, 1, false, false}, /* all on one, an odd number of
                                                                     tiles */
        {GROUPED_WGRAD, 384, 64, {0, 0, 330, 0}, 1, 2, false, false},
        {GROUPED_FWD, 72, 64, {0, 0, 0}, 5, 1, false, false},
        {GROUPED_WGRAD, 72, 64, {0, 0, 0}, 5, 1, false, false},
        {GROUPED_FWD, 72, 304, {130, 0, 5, 300, 1}, 40, 2, true, false},
        {GROUPED_FWD, 64, 512, {0, 129, 3}, 2, 1, true, true},
        {GROUPED_FWD, 64, 16, {7, 0, 257, 0}, 0, 1, true, false},
    };
    const char *const names[] = {
        "forward", "input gradient",   "weight gradient", "all on one",  "all on one, weights",
        "no rows", "no rows, weights", "gated",           "gated alone", "gated, narrow"};
    int bad = check_covers();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (uint64_t order = 0; order < 3; order++)
            bad += check_problem(names[i], problems[i], order);
    return bad != 0;
}
