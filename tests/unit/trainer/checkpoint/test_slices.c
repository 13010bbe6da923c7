/* test_slices.c: the ranks of one layout write a model together, as weight files and as training
 * state, and the ranks of any other layout read their slices of it and little more. */
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "tests/harness.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/checkpoint/rank_sync.h"
#include "trainer/ops/open.h"

typedef struct bench {
    model_dims d;
    device *dev;
    stream *s;
} bench;

/* The part of the model that one rank holds. */
typedef struct part {
    mesh mesh; /* only sizes: the ranks of this test never talk */
    params *p;
} part;

enum { SEED = 3, WORLD_MOST = 8 };

static layout layout_like(int64_t shard, int64_t tensor, int64_t expert, int64_t expert_tensor)
{
    return (layout){.replicate = 1,
                    .shard = shard,
                    .context = 1,
                    .tensor = tensor,
                    .pipeline = 1,
                    .expert = expert,
                    .expert_tensor = expert_tensor,
                    .world = shard * tensor,
                    .accumulation = 8};
}

static const int64_t degrees[][4] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {3, 1, 1, 1}, {8, 1, 4, 1},
                                     {2, 2, 2, 2}, {2, 2, 1, 1}, {4, 2, 8, 1}};
enum { LAYOUTS = sizeof degrees / sizeof *degrees };

static layout layout_number(int i)
{
    return layout_like(degrees[i][0], degrees[i][1], degrees[i][2], degrees[i][3]);
}

static void open_part(bench *b, const layout *l, int rank, part *x)
{
    int members[WORLD_MOST];
    mesh_alone(&x->mesh);
    x->mesh.layout = *l;
    x->mesh.rank = rank;
    x->mesh.place = mesh_place_of(l, rank);
    for (int g = 0; g < MESH_GROUPS; g++) {
        comm *c = &x->mesh.group[g];
        c->size = mesh_members(l, rank, (mesh_group)g, members);
        while (members[c->rank] != rank)
            c->rank++;
    }
    assert_ok(params_new(&b->d, &x->p));
    if (l->world > 1) {
        assert_ok(params_cut(x->p, &b->d, l, x->mesh.place));
        params_share(x->p, &x->mesh, true);
    }
    assert_ok(params_alloc(x->p, b->s, true));
}

static void close_part(bench *b, part *x)
{
    params_release(x->p, b->s);
    params_free(&x->p);
}

/* Fills the moments with values that tell their element, as the values do. */
static void fill_moments(const part *x)
{
    for (int64_t i = 0; i < x->p->count; i++) {
        const param *p = &x->p->list[i];
        for (int64_t j = 0, n, stored; j < p->own_n; j += n) {
            n = slice_run(&p->held, p->own_first + j, p->own_n - j, &stored);
            for (int64_t k = 0; k < n; k++) {
                ((float *)p->moment1)[j + k] = (float)(i + 1) * (float)(stored + k);
                ((float *)p->moment2)[j + k] = (float)(stored + k) - (float)i;
            }
        }
    }
}

static void write_all(bench *b, const layout *l, const char *folder, expert_layout stored)
{
    char training[STATUS_PATH_MAX];
    snprintf(training, sizeof training, "%s/training", folder);
    assert_ok(file_make_folders(training));
    /* The last rank is first: none waits for another. */
    for (int rank = (int)l->world - 1; rank >= 0; rank--) {
        part x;
        open_part(b, l, rank, &x);
        assert_ok(params_init(x.p, b->s, SEED));
        fill_moments(&x);
        state_writer w = together_of(x.p).writer;
        hf_export_options o = {.dtype = HF_EXPORT_F32,
                               .choose_layout = true,
                               .layout = stored,
                               .shard_bytes = 400000,
                               .writer = w.rank,
                               .writers = w.ranks};
        assert_ok(hf_export(x.p, b->s, &b->d, folder, &o));
        assert_ok(train_state_write(x.p, b->s, w, training));
        close_part(b, &x);
    }
}

/* A hash over all weight files. */
static hash128 digest(const char *folder)
{
    hash128 all = {{0}}, one;
    char path[STATUS_PATH_MAX];
    int n = 0;
    for (int of = 1; of < 100 && n == 0; of++)
        for (int i = 1; i <= of; i++) {
            snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, i, of);
            if (hash_file(path, &one) != ST_OK)
                break;
            all = hash_chain(all, one);
            n++;
        }
    assert_true(n > 1);
    return all;
}

static void open_bench(bench *b)
{
    assert_ok(dims_preset("debug", &b->d));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &b->dev));
    assert_ok(b->dev->backend->stream_new(b->dev, &b->s));
}

static void close_bench(bench *b)
{
    b->dev->backend->stream_free(&b->s);
    device_close(&b->dev);
}

static void test_slices__ranks_write_the_files_of_one(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
        hash128 want = {{0}};
        for (int i = 0; i < LAYOUTS; i++) {
            char *folder = harness_temp();
            layout l = layout_number(i);
            write_all(&b, &l, folder, (expert_layout)stored);
            hash128 got = digest(folder);
            if (i == 0)
                want = got;
            assert_true(hash_equal(got, want));
            harness_remove(&folder);
        }
    }
    close_bench(&b);
}

static void check_part(bench *b, const char *folder, const layout *l, int rank, const params *whole)
{
    char training[STATUS_PATH_MAX];
    part x;
    snprintf(training, sizeof training, "%s/training", folder);
    open_part(b, l, rank, &x);
    for (int from_state = 0; from_state < 2; from_state++) {
        int64_t own = 0;
        x.p->bytes_read = 0;
        if (from_state)
            assert_ok(train_state_load(x.p, b->s, training));
        else
            assert_ok(hf_load(x.p, b->s, folder));
        for (int64_t i = 0; i < x.p->count; i++) {
            const param *p = &x.p->list[i], *q = &whole->list[i];
            own += p->own_n;
            for (int64_t j = 0, n, at; j < p->own_n; j += n) {
                n = slice_run(&p->held, p->own_first + j, p->own_n - j, &at);
                const size_t bytes = (size_t)n * sizeof(float);
                assert_memory_equal((float *)p->value + j, (float *)q->value + at, bytes);
                if (!from_state)
                    continue;
                assert_memory_equal((float *)p->moment1 + j, (float *)q->moment1 + at, bytes);
                assert_memory_equal((float *)p->moment2 + j, (float *)q->moment2 + at, bytes);
            }
        }
        /* Of a weight file, a rank may also read the experts that its slice cuts at either end. */
        int64_t ends =
            from_state ? 0 : x.p->count * 2 * 4 * b->d.text.hidden * b->d.text.expert_width;
        int64_t arrays = from_state ? 3 : 1;
        assert_in_range(x.p->bytes_read, own * arrays * 4, (own * arrays + ends) * 4);
    }
    close_part(b, &x);
}

static void test_slices__any_ranks_read_what_any_wrote(void **state)
{
    (void)state;
    bench b;
    part whole;
    layout one = layout_number(0);
    open_bench(&b);
    open_part(&b, &one, 0, &whole);
    assert_ok(params_init(whole.p, b.s, SEED));
    fill_moments(&whole);
    for (int i = 0; i < LAYOUTS; i++) {
        char *folder = harness_temp();
        layout from = layout_number(i);
        write_all(&b, &from, folder, (expert_layout)(i % 3));
        for (int k = 0; k < LAYOUTS; k++) {
            layout to = layout_number(k);
            for (int rank = 0; rank < to.world; rank++)
                check_part(&b, folder, &to, rank, whole.p);
        }
        harness_remove(&folder);
    }
    close_part(&b, &whole);
    close_bench(&b);
}

/* A state file that is gone is named. Any file that has the values may take its place. */
static void test_slices__a_missing_file_is_named(void **state)
{
    (void)state;
    bench b;
    part x;
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX], *folder = harness_temp();
    layout two = layout_number(1), one = layout_number(0);
    open_bench(&b);
    write_all(&b, &two, folder, EXPERTS_FUSED);
    snprintf(training, sizeof training, "%s/training", folder);
    snprintf(path, sizeof path, "%s/rank-00001-of-00002.safetensors", training);
    open_part(&b, &one, 0, &x);
    assert_int_equal(remove(path), 0);
    assert_fails(ST_NO_INPUT, train_state_load(x.p, b.s, training), "rank-00001-of-00002");
    state_writer w = {1, 2};
    /* the state of the whole model, under the missing name */
    assert_ok(train_state_write(x.p, b.s, w, training));
    assert_ok(train_state_load(x.p, b.s, training));
    close_part(&b, &x);
    close_bench(&b);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices__ranks_write_the_files_of_one),
        cmocka_unit_test(test_slices__any_ranks_read_what_any_wrote),
        cmocka_unit_test(test_slices__a_missing_file_is_named),
    };
    return cmocka_run_group_tests_name("slices", tests, NULL, NULL);
}
