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
    device *d;
    stream *s;
    void *array[9]; /* q k v o do dq dk dv; lse and work */
    int32_t *cu, *prefix;
} bench;

static void open_bench(bench *b)
{
    void *cu, *prefix;
    assert_ok(backend_simt()->open(&(device_options){0}, &b->d));
    assert_ok(b->d->backend->stream_new(b->d, &b->s));
    for (int i = 0; i < 9; i++) {
        assert_ok(b->d->backend->alloc(b->d, TOKENS * WIDTH * sizeof(float), &b->array[i]));
        assert_ok(b->d->backend->zero(b->s, b->array[i], TOKENS * WIDTH * sizeof(float)));
    }
    assert_ok(b->d->backend->alloc(b->d, (DOCS_MAX + 1) * sizeof(int32_t), &cu));
    b->cu = cu;
    assert_ok(b->d->backend->alloc(b->d, DOCS_MAX * sizeof(int32_t), &prefix));
    b->prefix = prefix;
    simt_schedule(SIMT_FORWARD, 1);
}

static void close_bench(bench *b)
{
    for (int i = 0; i < 9; i++)
        b->d->backend->release(b->d, b->array[i]);
    b->d->backend->release(b->d, b->cu);
    b->d->backend->release(b->d, b->prefix);
    b->d->backend->stream_free(&b->s);
    b->d->backend->close(b->d);
}

/* The numbers of products in forward and backward, over documents of one length. */
typedef struct products {
    int64_t forward, backward;
} products;

static products run_segments(const bench *b, int docs, const int32_t *prefix)
{
    float *lse = b->array[8];
    const attention_fwd_args f = {.tokens = TOKENS,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = WIDTH,
                                  .segments = docs,
                                  .causal = true,
                                  .scale = 0.25,
                                  .cu = b->cu,
                                  .prefix = prefix,
                                  .q = b->array[0],
                                  .k = b->array[1],
                                  .v = b->array[2],
                                  .o = b->array[3],
                                  .lse = lse,
                                  .q_stride = WIDTH,
                                  .k_stride = WIDTH,
                                  .v_stride = WIDTH,
                                  .o_stride = WIDTH};
    attention_bwd_args a = attention_bwd_of(&f);
    a.do_ = b->array[4];
    a.dq = b->array[5];
    a.dk = b->array[6];
    a.dv = b->array[7];
    a.work = lse + TOKENS;
    const int64_t before = simt_products;
    assert_ok(op_attention_fwd(b->s, &f));
    const int64_t between = simt_products;
    assert_ok(op_attention_bwd(b->s, &a));
    return (products){between - before, simt_products - between};
}

static products run_attention(const bench *b, int length)
{
    const int docs = (TOKENS + length - 1) / length;
    for (int i = 0; i <= docs; i++)
        b->cu[i] = i * length < TOKENS ? i * length : TOKENS;
    return run_segments(b, docs, NULL);
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
    bench b;
    open_bench(&b);
    const products whole = run_attention(&b, TOKENS);
    const int64_t row = tiles(TOKENS) * (tiles(TOKENS) + 1) / 2;
    const int64_t one = whole.forward / (2 * row); /* a pair of tiles needs two products */
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const products got = run_attention(&b, lengths[i]);
        int64_t queries, keys;
        pairs(lengths[i], &queries, &keys);
        print_message("documents of %d: %lld pairs of tiles forward, of %lld in a whole row\n",
                      lengths[i], (long long)(got.forward / (2 * one)), (long long)row);
        assert_int_equal(got.forward, 2 * queries * one);
        assert_int_equal(got.backward, (3 * queries + 4 * keys) * one);
        assert_true(queries <= tiles(TOKENS) * (tiles(lengths[i]) + 1));
    }
    close_bench(&b);
}

enum { PREFIX = 100, BRANCH = 37 };

/* The end of the branch, or of the prefix, that token t is in; and where it begins. */
static int branch_end(int t)
{
    const int end = t < PREFIX ? PREFIX : PREFIX + ((t - PREFIX) / BRANCH + 1) * BRANCH;
    return end < TOKENS ? end : TOKENS;
}

static int branch_begin(int t)
{
    return t < PREFIX ? 0 : PREFIX + (t - PREFIX) / BRANCH * BRANCH;
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
    bench b;
    open_bench(&b);
    const products whole = run_attention(&b, TOKENS);
    const int64_t row = tiles(TOKENS) * (tiles(TOKENS) + 1) / 2, one = whole.forward / (2 * row);
    int docs = 0;
    for (int at = 0; at < TOKENS; at = branch_end(at)) {
        b.cu[docs] = at;
        b.prefix[docs++] = at == 0 ? -1 : 0;
    }
    b.cu[docs] = TOKENS;
    const products got = run_segments(&b, docs, b.prefix);
    int64_t queries, keys;
    tree_pairs(&queries, &keys);
    print_message("%d branches: %lld pairs of tiles forward, of %lld in a whole row\n", docs - 1,
                  (long long)(got.forward / (2 * one)), (long long)row);
    assert_int_equal(got.forward, 2 * queries * one);
    assert_int_equal(got.backward, (3 * queries + 4 * keys) * one);
    assert_true(queries < row);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__visits_only_tiles_of_its_documents),
        cmocka_unit_test(test_attention__passes_over_other_branches),
    };
    return cmocka_run_group_tests_name("attention_tiles", tests, NULL, NULL);
}
