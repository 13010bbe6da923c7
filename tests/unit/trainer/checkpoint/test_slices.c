/* SPDX-License-Identifier: Apache-2.0 */
/* test_slices.c: the ranks of one layout write a model together, as weight files and as training
 * state, and the ranks of any other layout read their slices of it and little more. */
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "tests/harness.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/checkpoint/save/save_ranks.h"
#include "trainer/ops/open.h"

typedef struct bench {
    model_dims dims;
    device *dev;
    stream *queue;
} bench;

/* The part of the model that one rank holds. */
typedef struct part {
    mesh mesh; /* only sizes: the ranks of this test never talk */
    params *registry;
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

static layout layout_number(int index)
{
    return layout_like(degrees[index][0], degrees[index][1], degrees[index][2], degrees[index][3]);
}

static void open_part(bench *setup, const layout *ranks, int rank, part *piece)
{
    int members[WORLD_MOST];
    mesh_alone(&piece->mesh);
    piece->mesh.layout = *ranks;
    piece->mesh.rank = rank;
    piece->mesh.place = mesh_place_of(ranks, rank);
    for (int group = 0; group < MESH_GROUPS; group++) {
        comm *all = &piece->mesh.group[group];
        all->size = mesh_members(ranks, rank, (mesh_group)group, members);
        while (members[all->rank] != rank)
            all->rank++;
    }
    assert_ok(params_new(&setup->dims, &piece->registry));
    if (ranks->world > 1) {
        assert_ok(params_cut(piece->registry, &setup->dims, ranks, piece->mesh.place));
        params_share(piece->registry, &piece->mesh, true);
    }
    assert_ok(params_alloc(piece->registry, setup->queue, true));
}

static void close_part(bench *setup, part *piece)
{
    params_release(piece->registry, setup->queue);
    params_free(&piece->registry);
}

/* Fills the moments with values that tell their element, as the values do. */
static void fill_moments(const part *piece)
{
    for (int64_t i = 0; i < piece->registry->count; i++) {
        const param *weight = &piece->registry->list[i];
        for (int64_t j = 0, length, stored; j < weight->own_n; j += length) {
            length = slice_run(&weight->held, weight->own_first + j, weight->own_n - j, &stored);
            for (int64_t k = 0; k < length; k++) {
                ((float *)weight->moment1)[j + k] = (float)(i + 1) * (float)(stored + k);
                ((float *)weight->moment2)[j + k] = (float)(stored + k) - (float)i;
            }
        }
    }
}

static void write_all(bench *setup, const layout *ranks, const char *folder, expert_layout stored)
{
    char training[STATUS_PATH_MAX];
    snprintf(training, sizeof training, "%s/training", folder);
    assert_ok(file_make_folders(training));
    /* The last rank is first: none waits for another. */
    for (int rank = (int)ranks->world - 1; rank >= 0; rank--) {
        part piece;
        open_part(setup, ranks, rank, &piece);
        assert_ok(params_init(piece.registry, setup->queue, SEED));
        fill_moments(&piece);
        state_writer writer = save_ranks_of(piece.registry, NULL).writer;
        hf_export_options options = {.dtype = HF_EXPORT_F32,
                                     .choose_layout = true,
                                     .layout = stored,
                                     .shard_bytes = 400000,
                                     .writer = writer.rank,
                                     .writers = writer.ranks};
        assert_ok(hf_export(piece.registry, setup->queue, &setup->dims, folder, &options));
        assert_ok(train_state_write(piece.registry, setup->queue, writer, training));
        close_part(setup, &piece);
    }
}

/* A hash over all weight files. */
static hash128 digest(const char *folder)
{
    hash128 all = {{0}}, one;
    char path[STATUS_PATH_MAX];
    int count = 0;
    for (int of = 1; of < 100 && count == 0; of++)
        for (int i = 1; i <= of; i++) {
            snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, i, of);
            if (hash_file(path, &one) != ST_OK)
                break;
            all = hash_chain(all, one);
            count++;
        }
    assert_true(count > 1);
    return all;
}

static void open_bench(bench *setup)
{
    assert_ok(dims_preset("debug", &setup->dims));
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
}

static void close_bench(bench *setup)
{
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

static void test_slices__ranks_write_the_files_of_one(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
        hash128 want = {{0}};
        for (int i = 0; i < LAYOUTS; i++) {
            char *folder = harness_temp();
            layout ranks = layout_number(i);
            write_all(&setup, &ranks, folder, (expert_layout)stored);
            hash128 got = digest(folder);
            if (i == 0)
                want = got;
            assert_true(hash_equal(got, want));
            harness_remove(&folder);
        }
    }
    close_bench(&setup);
}

static void check_part(bench *setup, const char *folder, const layout *ranks, int rank,
                       const params *whole)
{
    char training[STATUS_PATH_MAX];
    part piece;
    snprintf(training, sizeof training, "%s/training", folder);
    open_part(setup, ranks, rank, &piece);
    for (int from_state = 0; from_state < 2; from_state++) {
        int64_t own = 0;
        piece.registry->bytes_read = 0;
        if (from_state)
            assert_ok(train_state_load(piece.registry, setup->queue, training));
        else
            assert_ok(hf_load(piece.registry, setup->queue, folder));
        for (int64_t i = 0; i < piece.registry->count; i++) {
            const param *weight = &piece.registry->list[i], *entry = &whole->list[i];
            own += weight->own_n;
            for (int64_t j = 0, length, at; j < weight->own_n; j += length) {
                length = slice_run(&weight->held, weight->own_first + j, weight->own_n - j, &at);
                const size_t bytes = (size_t)length * sizeof(float);
                assert_memory_equal((float *)weight->value + j, (float *)entry->value + at, bytes);
                if (!from_state)
                    continue;
                assert_memory_equal((float *)weight->moment1 + j, (float *)entry->moment1 + at,
                                    bytes);
                assert_memory_equal((float *)weight->moment2 + j, (float *)entry->moment2 + at,
                                    bytes);
            }
        }
        /* Of a weight file, a rank may also read the experts that its slice cuts at either end. */
        int64_t ends = from_state ? 0
                                  : piece.registry->count * 2 * 4 * setup->dims.text.hidden *
                                        setup->dims.text.expert_width;
        int64_t arrays = from_state ? 3 : 1;
        assert_in_range(piece.registry->bytes_read, own * arrays * 4, (own * arrays + ends) * 4);
    }
    close_part(setup, &piece);
}

static void test_slices__any_ranks_read_what_any_wrote(void **state)
{
    (void)state;
    bench setup;
    part whole;
    layout one = layout_number(0);
    open_bench(&setup);
    open_part(&setup, &one, 0, &whole);
    assert_ok(params_init(whole.registry, setup.queue, SEED));
    fill_moments(&whole);
    for (int i = 0; i < LAYOUTS; i++) {
        char *folder = harness_temp();
        layout from = layout_number(i);
        write_all(&setup, &from, folder, (expert_layout)(i % 3));
        for (int k = 0; k < LAYOUTS; k++) {
            layout to = layout_number(k);
            for (int rank = 0; rank < to.world; rank++)
                check_part(&setup, folder, &to, rank, whole.registry);
        }
        harness_remove(&folder);
    }
    close_part(&setup, &whole);
    close_bench(&setup);
}

/* A state file that is gone is named. Any file that has the values may take its place. */
static void test_slices__a_missing_file_is_named(void **state)
{
    (void)state;
    bench setup;
    part piece;
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX], *folder = harness_temp();
    layout two = layout_number(1), one = layout_number(0);
    open_bench(&setup);
    write_all(&setup, &two, folder, EXPERTS_FUSED);
    snprintf(training, sizeof training, "%s/training", folder);
    snprintf(path, sizeof path, "%s/rank-00001-of-00002.safetensors", training);
    open_part(&setup, &one, 0, &piece);
    assert_int_equal(remove(path), 0);
    assert_fails(ST_NO_INPUT, train_state_load(piece.registry, setup.queue, training),
                 "rank-00001-of-00002");
    state_writer writer = {1, 2};
    /* the state of the whole model, under the missing name */
    assert_ok(train_state_write(piece.registry, setup.queue, writer, training));
    assert_ok(train_state_load(piece.registry, setup.queue, training));
    close_part(&setup, &piece);
    close_bench(&setup);
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
