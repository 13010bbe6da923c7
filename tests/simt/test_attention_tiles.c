/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention_tiles.c: how many products the portable attention makes in a packed row: as many
 * as its documents need, whatever the length of the row. A tile of 64 queries visits the keys from
 * the beginning of its first token's document to itself; a tile of keys visits the queries from
 * itself to the end of its last token's document. Queries of a branch visit their prefix and skip
 * the branches before their own. */
#include "tests/harness.h"

#include "tests/simt/device.h"
#include "tests/simt/simt.h"
#include "trainer/ops/table.h"

enum { TOKENS = 512, TILE = 64, DOCS_MAX = 16, WIDTH = 16 };

typedef struct bench {
    device *dev;
    stream *queue;
    void *array[9]; /* q k v o do dq dk dv; lse and work */
    int32_t *cu, *prefix;
} bench;

static void open_bench(bench *setup)
{
    void *cu, *prefix;
    assert_ok(backend_simt()->open(&(device_options){0}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    for (int i = 0; i < 9; i++) {
        assert_ok(setup->dev->backend->alloc(setup->dev, TOKENS * WIDTH * sizeof(float),
                                             &setup->array[i]));
        assert_ok(setup->dev->backend->zero(setup->queue, setup->array[i],
                                            TOKENS * WIDTH * sizeof(float)));
    }
    assert_ok(setup->dev->backend->alloc(setup->dev, (DOCS_MAX + 1) * sizeof(int32_t), &cu));
    setup->cu = cu;
    assert_ok(setup->dev->backend->alloc(setup->dev, DOCS_MAX * sizeof(int32_t), &prefix));
    setup->prefix = prefix;
    simt_schedule(SIMT_FORWARD, 1);
}

static void close_bench(bench *setup)
{
    for (int i = 0; i < 9; i++)
        setup->dev->backend->release(setup->dev, setup->array[i]);
    setup->dev->backend->release(setup->dev, setup->cu);
    setup->dev->backend->release(setup->dev, setup->prefix);
    setup->dev->backend->stream_free(&setup->queue);
    setup->dev->backend->close(setup->dev);
}

/* The numbers of products in forward and backward, over documents of one length. */
typedef struct products {
    int64_t forward, backward;
} products;

static products run_segments(const bench *setup, int docs, const int32_t *prefix)
{
    float *lse = setup->array[8];
    const attention_fwd_args args = {.tokens = TOKENS,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .head_dim = WIDTH,
                                     .segments = docs,
                                     .causal = true,
                                     .scale = 0.25,
                                     .cu = setup->cu,
                                     .prefix = prefix,
                                     .q = setup->array[0],
                                     .k = setup->array[1],
                                     .v = setup->array[2],
                                     .o = setup->array[3],
                                     .lse = lse,
                                     .q_stride = WIDTH,
                                     .k_stride = WIDTH,
                                     .v_stride = WIDTH,
                                     .o_stride = WIDTH};
    attention_bwd_args back = attention_bwd_of(&args);
    back.do_ = setup->array[4];
    back.dq = setup->array[5];
    back.dk = setup->array[6];
    back.dv = setup->array[7];
    back.work = lse + TOKENS;
    const int64_t before = simt_products;
    assert_ok(op_attention_fwd(setup->queue, &args));
    const int64_t between = simt_products;
    assert_ok(op_attention_bwd(setup->queue, &back));
    return (products){between - before, simt_products - between};
}

static products run_attention(const bench *setup, int length)
{
    const int docs = (TOKENS + length - 1) / length;
    for (int i = 0; i <= docs; i++)
        setup->cu[i] = i * length < TOKENS ? i * length : TOKENS;
    return run_segments(setup, docs, NULL);
}

static int64_t tiles(int64_t tokens)
{
    return (tokens + TILE - 1) / TILE;
}

/* Counts the pairs of tiles: of queries with the keys that they see, and of keys with the queries
 * that see them. */
static void pairs(int length, int64_t *out_queries, int64_t *out_keys)
{
    *out_queries = *out_keys = 0;
    for (int at = 0; at < TOKENS; at += TILE) {
        const int last = at + TILE - 1, end = (last / length + 1) * length;
        *out_queries += tiles(last + 1 - at / length * length);
        *out_keys += tiles((end < TOKENS ? end : TOKENS) - at);
    }
}

static void test_attention__visits_only_tiles_of_its_documents(void **state)
{
    (void)state;
    const int lengths[] = {TOKENS, 200, 100, TILE, 37};
    bench setup;
    open_bench(&setup);
    const products whole = run_attention(&setup, TOKENS);
    const int64_t row = tiles(TOKENS) * (tiles(TOKENS) + 1) / 2;
    const int64_t one = whole.forward / (2 * row); /* a pair of tiles needs two products */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const products got = run_attention(&setup, lengths[i]);
        int64_t queries, keys;
        pairs(lengths[i], &queries, &keys);
        print_message("documents of %d: %lld pairs of tiles forward, of %lld in a whole row\n",
                      lengths[i], (long long)(got.forward / (2 * one)), (long long)row);
        assert_int_equal(got.forward, 2 * queries * one);
        assert_int_equal(got.backward, (3 * queries + 4 * keys) * one);
        assert_true(queries <= tiles(TOKENS) * (tiles(lengths[i]) + 1));
    }
    close_bench(&setup);
}

enum { PREFIX = 100, BRANCH = 37 };

/* The end of the branch, or of the prefix, that token token is in; and where it begins. */
static int branch_end(int token)
{
    const int end = token < PREFIX ? PREFIX : PREFIX + ((token - PREFIX) / BRANCH + 1) * BRANCH;
    return end < TOKENS ? end : TOKENS;
}

static int branch_begin(int token)
{
    return token < PREFIX ? 0 : PREFIX + (token - PREFIX) / BRANCH * BRANCH;
}

/* The pairs of tiles of a row that is a prefix of 100 tokens with branches of 37. */
static void tree_pairs(int64_t *out_queries, int64_t *out_keys)
{
    *out_queries = *out_keys = 0;
    for (int first = 0; first < TOKENS; first += TILE) {
        const int last = first + TILE - 1, own = branch_begin(first);
        for (int at = 0; at <= last; ++*out_queries) {
            at += TILE;
            at = at >= PREFIX && at < own ? own : at;
        }
        *out_keys += tiles((first < PREFIX ? TOKENS : branch_end(last)) - first);
    }
}

static void test_attention__passes_over_other_branches(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    const products whole = run_attention(&setup, TOKENS);
    const int64_t row = tiles(TOKENS) * (tiles(TOKENS) + 1) / 2, one = whole.forward / (2 * row);
    int docs = 0;
    for (int at = 0; at < TOKENS; at = branch_end(at)) {
        setup.cu[docs] = at;
        setup.prefix[docs++] = at == 0 ? -1 : 0;
    }
    setup.cu[docs] = TOKENS;
    const products got = run_segments(&setup, docs, setup.prefix);
    int64_t queries, keys;
    tree_pairs(&queries, &keys);
    print_message("%d branches: %lld pairs of tiles forward, of %lld in a whole row\n", docs - 1,
                  (long long)(got.forward / (2 * one)), (long long)row);
    assert_int_equal(got.forward, 2 * queries * one);
    assert_int_equal(got.backward, (3 * queries + 4 * keys) * one);
    assert_true(queries < row);
    close_bench(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__visits_only_tiles_of_its_documents),
        cmocka_unit_test(test_attention__passes_over_other_branches),
    };
    return cmocka_run_group_tests_name("attention_tiles", tests, NULL, NULL);
}
