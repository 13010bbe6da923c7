/* SPDX-License-Identifier: Apache-2.0 */
/* test_grouped_hopper.cc: the grouped product's kernel for Hopper, run on the host instruction by
 * instruction (hopper_host.h) and compared with plain loops: every mode, ragged and empty groups,
 * widths that do not fill a tile, garbage beyond the groups, and any order of threads and loads;
 * and what a wait leaves that never ends.
 * Letters: x, w, y the input, the weights and the output; k, n the sizes of a product; T a type. */
#include "tests/simt/hopper_host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "trainer/ops/cuda/grouped_hopper.cuh"

struct problem {
    int mode;
    int32_t k, n;
    std::vector<int32_t> rows; /* of each expert */
    int spare;                 /* rows beyond the last */
    int clusters;
    bool gated, dropped; /* gated: FWD with SwiGLU; dropped: y is not wanted */
    int turns;           /* of the clusters; 0: one */
};

struct call {
    CUtensorMap first, second;
    grouped_work work;
    const int32_t *offset;
    grouped_out out;
};

static void kernel(void *context)
{
    const call *launch = (const call *)context;
    switch (launch->work.mode) {
    case GROUPED_FWD:
        return grouped_block<GROUPED_FWD>(launch->work, hopper_shared(), &launch->first,
                                          &launch->second, launch->offset, launch->out);
    case GROUPED_DGRAD:
        return grouped_block<GROUPED_DGRAD>(launch->work, hopper_shared(), &launch->first,
                                            &launch->second, launch->offset, launch->out);
    default:
        return grouped_block<GROUPED_WGRAD>(launch->work, hopper_shared(), &launch->first,
                                            &launch->second, launch->offset, launch->out);
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

static arrays make_arrays(const problem &task, uint64_t seed)
{
    const uint16_t nan = 0x7fff;
    arrays data;
    size_t experts = task.rows.size(), k = (size_t)task.k, n = (size_t)task.n;
    data.offset.assign(experts + 1, 0);
    for (size_t expert = 0; expert < experts; expert++)
        data.offset[expert + 1] = data.offset[expert] + task.rows[expert];
    data.rows_cap = data.offset[experts] + task.spare;
    data.x.assign((size_t)data.rows_cap * k, nan);
    data.y.assign((size_t)data.rows_cap * n, nan);
    data.gated.assign((size_t)data.rows_cap * n / 2, nan);
    data.w.resize(experts * k * n);
    data.dw.resize(experts * k * n);
    for (size_t i = 0; i < (size_t)data.offset[experts] * k; i++)
        data.x[i] = draw_bf16(&seed);
    for (size_t i = 0; i < (size_t)data.offset[experts] * n; i++)
        data.y[i] = draw_bf16(&seed);
    for (auto &value : data.w)
        value = draw_bf16(&seed);
    for (auto &value : data.dw)
        value = widen_bits(draw_bf16(&seed));
    return data;
}

/* The specification, as plain loops. Elements that it does not write stay as they are. */
static arrays reference(const problem &task, const arrays &from)
{
    arrays data = from;
    size_t k = (size_t)task.k, n = (size_t)task.n;
    for (size_t expert = 0; expert < task.rows.size(); expert++)
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < n && task.mode == GROUPED_WGRAD; j++)
                for (size_t row = (size_t)data.offset[expert];
                     row < (size_t)data.offset[expert + 1]; row++)
                    data.dw[(expert * k + i) * n + j] +=
                        widen_bits(data.x[row * k + i]) * widen_bits(data.y[row * n + j]);
    for (size_t expert = 0; expert < task.rows.size() && task.mode != GROUPED_WGRAD; expert++)
        for (size_t row = (size_t)data.offset[expert]; row < (size_t)data.offset[expert + 1];
             row++) {
            bool fwd = task.mode == GROUPED_FWD;
            size_t width = fwd ? n : k, reduced = fwd ? k : n;
            for (size_t out = 0; out < width; out++) {
                float sum = 0;
                for (size_t i = 0; i < reduced; i++)
                    sum += widen_bits(fwd ? from.x[row * k + i] : from.y[row * n + i]) *
                           widen_bits(data.w[(expert * k + (fwd ? i : out)) * n + (fwd ? out : i)]);
                (fwd ? data.y : data.x)[row * width + out] = __float2bfloat16_rn(sum).bits;
            }
            for (size_t out = 0; out < n / 2 && task.gated; out++)
                data.gated[row * n / 2 + out] =
                    __float2bfloat16_rn(swiglu(widen_bits(data.y[row * n + out]),
                                               widen_bits(data.y[row * n + n / 2 + out])))
                        .bits;
        }
    if (task.dropped)
        data.y = from.y;
    return data;
}

static CUtensorMap map_of(const std::vector<uint16_t> &value, int64_t width, int64_t rows,
                          int64_t depth, const grouped_operand &operand)
{
    return CUtensorMap{value.data(), width, rows, depth, operand.box_bytes / 128};
}

static void run_problem(const problem &task, arrays *data, uint64_t order)
{
    grouped_gemm_args args = {};
    args.mode = task.mode;
    args.experts = (int64_t)task.rows.size();
    args.k = task.k;
    args.n = task.n;
    args.rows_cap = data->rows_cap;
    args.gated = task.gated ? data->gated.data() : NULL;
    call launch = {};
    launch.work = grouped_work_of(&args, GROUPED_TILE_N, GROUPED_STEP, GROUPED_BLOCKS);
    launch.work.turns = task.turns > 1 ? task.turns : 1;
    launch.offset = data->offset.data();
    const grouped_operand oa = grouped_a(task.mode), ob = grouped_b(task.mode);
    bool wgrad = task.mode == GROUPED_WGRAD;
    launch.first = task.mode == GROUPED_DGRAD ? map_of(data->y, task.n, data->rows_cap, 1, oa)
                                              : map_of(data->x, task.k, data->rows_cap, 1, oa);
    launch.second = wgrad ? map_of(data->y, task.n, data->rows_cap, 1, ob)
                          : map_of(data->w, task.n, task.k, args.experts, ob);
    launch.out.y = wgrad                      ? (void *)data->dw.data()
                   : task.mode == GROUPED_FWD ? (void *)data->y.data()
                                              : (void *)data->x.data();
    launch.out.y = task.dropped ? NULL : launch.out.y;
    launch.out.gated = args.gated;
    hopper_run(task.clusters * GROUPED_BLOCKS, GROUPED_BLOCKS, GROUPED_THREADS,
               (size_t)grouped_shared_bytes(launch.work.experts), order, kernel, &launch);
}

template <class T>
static int compare_arrays(const char *name, const problem &task, uint64_t order,
                          const std::vector<T> &got, const std::vector<T> &want, int64_t width)
{
    for (size_t i = 0; i < got.size(); i++)
        if (memcmp(&got[i], &want[i], sizeof(T)) != 0) {
            fprintf(stderr,
                    "%s: order %llu, mode %d, k %d, n %d: row %lld, column %lld is %g, wanted %g\n",
                    name, (unsigned long long)order, task.mode, task.k, task.n,
                    (long long)((int64_t)i / width), (long long)((int64_t)i % width),
                    sizeof(T) == 2 ? (double)widen_bits((uint16_t)got[i]) : (double)got[i],
                    sizeof(T) == 2 ? (double)widen_bits((uint16_t)want[i]) : (double)want[i]);
            return 1;
        }
    return 0;
}

static int check_problem(const char *name, const problem &task, uint64_t order)
{
    arrays data = make_arrays(task, 17), want = reference(task, data);
    run_problem(task, &data, order);
    int bad = compare_arrays(name, task, order, data.x, want.x, task.k) +
              compare_arrays(name, task, order, data.y, want.y, task.n) +
              compare_arrays(name, task, order, data.gated, want.gated, task.n / 2) +
              compare_arrays(name, task, order, data.dw, want.dw, task.n);
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
    for (size_t expert = 0; expert < rows.size(); expert++) {
        first[expert + 1] = first[expert] + grouped_units(mode, rows[expert]);
        begin[expert + 1] = begin[expert] + rows[expert];
    }
    args.rows_cap = begin[rows.size()];
    grouped_work work = grouped_work_of(&args, GROUPED_TILE_N, GROUPED_STEP, blocks);
    int32_t across = grouped_ceil(work.out_n, work.tile_n);
    /* How often each tile is stored: rows of the output, expert by expert,
     * times columns of tiles. */
    int64_t height = mode == GROUPED_WGRAD ? work.out_m * args.experts : args.rows_cap;
    std::vector<uint8_t> stored((size_t)(height * across));
    int bad = 0;
    for (int64_t at = 0; at < grouped_tiles(&work, first[rows.size()]); at++) {
        grouped_tile tile[2];
        for (int rank = 0; rank < blocks; rank++) {
            tile[rank] = grouped_tile_at(&work, first.data(), begin.data(), at, rank);
            const grouped_tile &placed = tile[rank];
            int64_t top =
                mode == GROUPED_WGRAD ? (int64_t)placed.expert * work.out_m + placed.m : placed.m;
            int64_t end = mode == GROUPED_WGRAD ? (int64_t)(placed.expert + 1) * work.out_m
                                                : (int64_t)begin[placed.expert + 1];
            bad +=
                placed.valid > 0 && (top + placed.valid > end || placed.row < begin[placed.expert]);
            for (int32_t line = 0; line < placed.valid; line++)
                stored[(size_t)((top + line) * across + placed.n / work.tile_n)]++;
        }
        if (blocks == 2)
            bad += tile[0].steps != tile[1].steps || tile[0].shared != tile[1].shared ||
                   tile[0].n != tile[1].n || (tile[0].shared && tile[0].expert != tile[1].expert);
    }
    for (size_t i = 0; i < stored.size(); i++) {
        int64_t row = (int64_t)i / across;
        bool wanted = mode != GROUPED_WGRAD || rows[(size_t)(row / work.out_m)] > 0;
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
    for (size_t expert = 0; expert < uneven.size(); expert++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uneven[expert] = expert % 7 == 3 ? 0 : (int32_t)(seed >> 33) % 900;
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

/* Whatever the number of tiles, of clusters and of turns, each tile has one cluster, also if there
 * are fewer tiles than the launch had to expect. */
static int check_walks(void)
{
    const int64_t tiles_of[] = {0, 1, 5, 65, 66, 67, 131, 264, 1000, 19001};
    int bad = 0;
    for (int64_t tiles : tiles_of)
        for (int64_t most : {tiles, tiles + 1, 2 * tiles + 300})
            for (int64_t at_once : {1, 3, 66, 132})
                for (int turns : {1, 2, 4, 7}) {
                    grouped_work work = {};
                    work.turns = 1;
                    const int64_t clusters = grouped_clusters(&work, most, at_once, turns);
                    std::vector<int> done((size_t)tiles);
                    for (int64_t cluster = 0; cluster < clusters; cluster++) {
                        const grouped_walk walk = grouped_walk_of(&work, tiles, cluster, clusters);
                        for (int32_t i = 0; i < walk.count; i++)
                            done[(size_t)(walk.first + i * walk.step)]++;
                    }
                    for (int times : done)
                        bad += times != 1;
                    bad += clusters > at_once * turns || work.turns > turns;
                }
    if (bad)
        fprintf(stderr, "walks: %d tiles are not computed once\n", bad);
    else
        printf("ok every tile in one walk\n");
    return bad != 0;
}

/* ---- a wait that never ends ---- */

static void wait_in_vain(void *of)
{
    uint64_t *barrier = (uint64_t *)hopper_shared();
    if (threadIdx.x == 0)
        barrier_init(barrier, 1);
    __syncthreads();
    barrier_wait(barrier, 0, (kernel_stuck *)of, STUCK_GROUPED + GROUPED_DGRAD, 2 * 3 + 1);
}

/* It leaves its place where the host finds it after the kernel has ended, here with its process. */
static int check_stuck(void)
{
    kernel_stuck *stuck = (kernel_stuck *)mmap(NULL, sizeof *stuck, PROT_READ | PROT_WRITE,
                                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t child = stuck == MAP_FAILED ? -1 : fork();
    int how = 0;
    if (child == 0) {
        hopper_run(1, 1, 32, 1024, 0, wait_in_vain, stuck);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &how, 0) != child)
        return 1;
    const bool trapped = how != 0 && kernel_stuck_failed(stuck, "", 719, "ended") == ST_BAD_DEVICE;
    const bool told = trapped && strstr(status_text(), "(grouped_hopper, dgrad) waited in block 0 "
                                                       "for stage 3 to become full, phase 0");
    printf("%s a wait that never ends: %s\n", told ? "ok" : "failed", status_text());
    return !told;
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
        {GROUPED_FWD, 64, 520, {130, 0, 5, 300, 1}, 40, 6, false, false, 3},
        {GROUPED_WGRAD, 300, 520, {70, 0, 64, 1}, 40, 4, false, false, 2},
    };
    const char *const names[] = {
        "forward",     "input gradient",    "weight gradient", "all on one",  "all on one, weights",
        "no rows",     "no rows, weights",  "gated",           "gated alone", "gated, narrow",
        "three turns", "two turns, weights"};
    int bad = check_covers() + check_walks() + check_stuck();
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (uint64_t order = 0; order < 3; order++)
            bad += check_problem(names[i], problems[i], order);
    return bad != 0;
}
