/* SPDX-License-Identifier: Apache-2.0 */
/* test_frozen.c: what is frozen has one copy, in the type that it is computed in, and that is what
 * plans count, what first values and files are written to, and what is read back. The device is the
 * CPU with BF16 as the type of weights, as a GPU has it: nothing is computed here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/checkpoint/state/base.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/ops/open.h"

enum { SEED = 3, LORA_RANK = 4, FEW = 64 };

static int64_t allocated; /* bytes of device memory since it was cleared */

static status counting_alloc(device *dev, size_t bytes, void **out)
{
    allocated += (int64_t)bytes;
    return backend_cpu.alloc(dev, bytes, out);
}

/* The preset `debug` with adapters, on a device of one or of two types. */
typedef struct bench {
    backend_vtable backend;
    device *dev;
    stream *queue;
    params *registry;
} bench;

static void open_bench(bench *setup, st_dtype act, int64_t lora_rank)
{
    model_dims dims;
    *setup = (bench){.backend = backend_cpu};
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->dev));
    setup->backend.act = act;
    setup->backend.alloc = counting_alloc;
    setup->dev->backend = &setup->backend;
    assert_ok(setup->backend.stream_new(setup->dev, &setup->queue));
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &setup->registry));
    if (lora_rank)
        assert_ok(lora_add(setup->registry, (lora_kind){.rank = lora_rank, .alpha = 16},
                           "q_proj,v_proj,gate_up_proj,down_proj"));
    allocated = 0;
    assert_ok(params_alloc(setup->registry, setup->queue, true));
}

static void close_bench(bench *setup)
{
    params_release(setup->registry, setup->queue);
    params_free(&setup->registry);
    setup->backend.stream_free(&setup->queue);
    setup->dev->backend = &backend_cpu;
    device_close(&setup->dev);
}

static int64_t longest_vector(const params *registry)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < registry->count; i++)
        if (registry->list[i].n_dims == 1 && registry->list[i].n_local > longest)
            longest = registry->list[i].n_local;
    return longest;
}

static void check_row(const param *row, st_dtype act)
{
    const bool two = act == DT_BF16 && !row->frozen;
    st_dtype dtype;
    assert_non_null(row->own_act);
    assert_ptr_equal(param_best(row, &dtype), two ? row->value : row->own_act);
    assert_int_equal(dtype, two ? DT_F32 : act);
    assert_true(two ? row->value != row->own_act : !row->value || row->value == row->own_act);
    assert_true(!row->frozen == (row->own_grad != NULL));
    assert_true(!row->frozen == (row->moment1 != NULL) && !row->frozen == (row->moment2 != NULL));
}

/* The bytes taken are those planned: 2 a frozen element and 18 a trained one, or 4 and 16 where
 * everything is float32. */
static void test_frozen__one_copy_and_no_state(void **state)
{
    (void)state;
    const st_dtype types[] = {DT_BF16, DT_F32};
    for (int i = 0; i < 2; i++) {
        bench setup;
        params_sizes size;
        open_bench(&setup, types[i], LORA_RANK);
        const params *registry = setup.registry;
        assert_ok(params_size(setup.registry, &setup.backend, true, &size));
        for (int64_t j = 0; j < registry->count; j++)
            check_row(&registry->list[j], types[i]);
        const int64_t frozen = size.stored - size.trained, each = i ? 4 : 2;
        assert_true(size.trained > 0 && size.trained < frozen / 10);
        assert_true(size.stored < registry->total + registry->count * UNIT_ALIGN);
        assert_int_equal(size.acts + size.values + size.grads + 2 * size.moments,
                         frozen * each + size.trained * (i ? 16 : 18));
        assert_int_equal(allocated, size.acts + size.values + size.grads + 2 * size.moments +
                                        longest_vector(registry) * 4);
        /* Device memory is host memory here, so frozen values are read where they are. */
        assert_int_equal(checkpoint_writer_snapshot(&size, &setup.backend, 1, true),
                         size.trained * 12);
        setup.backend.immediate = false;
        assert_int_equal(checkpoint_writer_snapshot(&size, &setup.backend, 1, false),
                         size.trained * 12);
        assert_int_equal(checkpoint_writer_snapshot(&size, &setup.backend, 1, true),
                         size.trained * 12 + frozen * each);
        close_bench(&setup);
    }
}

static void expect_same(const param *row, const param *other)
{
    assert_string_equal(row->name, other->name);
    assert_memory_equal(row->own_act, other->own_act, (size_t)row->own_n * 2);
}

/* A frozen parameter begins with the same BF16 bits as a trained one. */
static void test_frozen__same_first_values(void **state)
{
    (void)state;
    bench setup, trained;
    open_bench(&setup, DT_BF16, LORA_RANK);
    open_bench(&trained, DT_BF16, 0);
    assert_ok(params_init(setup.registry, setup.queue, SEED));
    assert_ok(params_init(trained.registry, trained.queue, SEED));
    for (int64_t i = 0; i < trained.registry->count; i++)
        expect_same(&setup.registry->list[i], &trained.registry->list[i]);
    close_bench(&trained);
    close_bench(&setup);
}

/* Frozen values survive a refresh, and are read and written like others. */
static void test_frozen__reads_what_was_written(void **state)
{
    (void)state;
    bench setup;
    double values[FEW], got[FEW];
    open_bench(&setup, DT_BF16, LORA_RANK);
    for (int64_t i = 0; i < setup.registry->count; i++) {
        const param *row = &setup.registry->list[i];
        const int64_t count = row->own_n < FEW ? row->own_n : FEW;
        for (int j = 0; j < FEW; j++)
            values[j] = (double)(j + 1) * 0.25;
        assert_ok(params_write(row, setup.queue, 0, count, values));
        assert_ok(params_refresh(setup.registry, setup.queue));
        assert_ok(params_read_value(row, setup.queue, 0, count, got));
        assert_memory_equal(got, values, (size_t)count * sizeof *got);
    }
    close_bench(&setup);
}

/* early: as trainers that wrote frozen values too. */
static void save(const bench *setup, bool early, const char *folder)
{
    for (int64_t i = 0; i < setup->registry->count && early; i++)
        setup->registry->list[i].kept = setup->registry->list[i].frozen;
    assert_ok(train_state_write(setup->registry, setup->queue, (state_writer){0, 1}, folder));
}

/* A state written by a device of either type is read by both: what was trained keeps all bits, and
 * what was frozen is rounded at most once. A file of the float32 device is what earlier releases
 * wrote on GPUs too. */
static void test_frozen__states_of_both_types(void **state)
{
    (void)state;
    const st_dtype types[] = {DT_BF16, DT_F32};
    for (int i = 0; i < 4; i++) {
        bench from, to;
        char *folder = harness_temp();
        open_bench(&from, types[i / 2], LORA_RANK);
        open_bench(&to, types[i % 2], LORA_RANK);
        assert_ok(params_init(from.registry, from.queue, SEED));
        save(&from, true, folder);
        assert_ok(train_state_load(to.registry, to.queue, folder));
        for (int64_t j = 0; j < from.registry->count; j++) {
            const param *row = &from.registry->list[j], *got = &to.registry->list[j];
            const int64_t count = row->own_n < FEW ? row->own_n : FEW;
            double want[FEW], have[FEW];
            uint16_t narrow[FEW];
            assert_ok(params_read_value(row, from.queue, 0, count, want));
            assert_ok(params_read_value(got, to.queue, 0, count, have));
            if (row->frozen && i % 2 == 0) {
                convert_from_double(narrow, DT_BF16, want, count);
                convert_to_double(want, narrow, DT_BF16, count);
            }
            assert_memory_equal(have, want, (size_t)count * sizeof *have);
        }
        close_bench(&to);
        close_bench(&from);
        harness_remove(&folder);
    }
}

static int64_t count_kept(const params *registry)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < registry->count; i++)
        kept += registry->list[i].kept;
    return kept;
}

/* Of an early trainer's file, a frozen row is kept in later files if model.path has other values,
 * and else is in none of them. */
static void test_frozen__what_the_base_has_is_not_written(void **state)
{
    (void)state;
    bench from, to;
    char *folder = harness_temp(), path[STATUS_PATH_MAX];
    const double other = 7;
    st_file file;
    open_bench(&from, DT_BF16, LORA_RANK);
    open_bench(&to, DT_BF16, LORA_RANK);
    const param *row = &from.registry->list[1];
    assert_true(row->frozen);
    for (int changed = 0; changed < 2; changed++) {
        assert_ok(params_init(from.registry, from.queue, SEED));
        if (changed)
            assert_ok(params_write(row, from.queue, row->own_n - 1, 1, &other));
        save(&from, true, folder);
        assert_ok(params_init(to.registry, to.queue, SEED));
        assert_ok(train_state_load(to.registry, to.queue, folder));
        assert_int_equal(count_kept(to.registry), changed);
        assert_true(to.registry->list[1].kept == (changed == 1));
        save(&to, false, folder);
        snprintf(path, sizeof path, "%s/rank-00000-of-00001.safetensors", folder);
        assert_ok(st_open(path, &file));
        int64_t trained = 0;
        for (int64_t i = 0; i < to.registry->count; i++)
            trained += !to.registry->list[i].frozen;
        assert_int_equal(file.n_tensors, 3 * trained + changed);
        st_close(&file);
    }
    close_bench(&to);
    close_bench(&from);
    harness_remove(&folder);
}

/* Gives the adapters values, so that they change what they are merged into. */
static void fill_adapters(const bench *setup)
{
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *row = &setup->registry->list[i];
        for (int64_t j = 0; j < row->own_n && row->adapter; j++) {
            const double value = (double)((j * 7 + i) % 13 - 6) / 64;
            assert_ok(params_write(row, setup->queue, j, 1, &value));
        }
    }
}

/* Loads a model of float32 files as BF16, merges adapters, and writes it again: what has no adapter
 * is as before, and the rest is not. stored: whether frozen values are. *out: a hash of all. */
static void write_again(const char *source, const char *out, int writers, bool stored,
                        hash128 *out_digest)
{
    bench setup;
    model_dims dims;
    hf_folder was = {0}, is = {0};
    const hf_export_options how = {.source = source,
                                   .dtype = HF_EXPORT_AS_SOURCE,
                                   .frozen_is_source = true,
                                   .writers = writers};
    open_bench(&setup, DT_BF16, LORA_RANK);
    assert_ok(dims_preset("debug", &dims));
    if (stored)
        assert_ok(hf_load(setup.registry, setup.queue, source));
    fill_adapters(&setup);
    assert_ok(hf_export(setup.registry, setup.queue, &dims, out, &how));
    assert_ok(hf_folder_open(source, &was));
    assert_ok(hf_folder_open(out, &is));
    assert_int_equal(is.n_tensors, was.n_tensors);
    for (int64_t i = 0; i < is.n_tensors; i++) {
        const st_tensor *now = is.tensors[i], *before = hf_folder_find(&was, now->name);
        const char *const adapted[] = {"q_proj", "v_proj", "mlp.experts"};
        bool merged = false;
        for (int j = 0; j < 3; j++)
            merged |= strstr(now->name, adapted[j]) != NULL;
        assert_int_equal(now->dtype, DT_F32);
        assert_true(merged == (memcmp(now->data.data, before->data.data, now->data.size) != 0));
        *out_digest = hash_chain(*out_digest, hash_bytes(now->data.data, now->data.size));
    }
    hf_folder_close(&is);
    hf_folder_close(&was);
    close_bench(&setup);
}

/* In every layout of the experts; one writer or a slice of several; values stored here or not. */
static void test_frozen__an_export_loses_no_bits(void **state)
{
    (void)state;
    const expert_layout layouts[] = {EXPERTS_FUSED, EXPERTS_EXCHANGED, EXPERTS_SEPARATE};
    for (int i = 0; i < 3; i++) {
        bench setup;
        model_dims dims;
        hash128 digest[3] = {0};
        char *folder = harness_temp(), source[STATUS_PATH_MAX], out[STATUS_PATH_MAX];
        const hf_export_options how = {
            .dtype = HF_EXPORT_F32, .choose_layout = true, .layout = layouts[i]};
        snprintf(source, sizeof source, "%s/source", folder);
        open_bench(&setup, DT_F32, 0);
        assert_ok(dims_preset("debug", &dims));
        assert_ok(params_init(setup.registry, setup.queue, SEED));
        assert_ok(hf_export(setup.registry, setup.queue, &dims, source, &how));
        close_bench(&setup);
        for (int j = 0; j < 3; j++) {
            snprintf(out, sizeof out, "%s/out-%d", folder, j);
            write_again(source, out, 1 + j % 2, j < 2, &digest[j]);
            assert_true(hash_equal(digest[j], digest[0]));
        }
        harness_remove(&folder);
    }
}

/* A base has the hash of its bytes, whatever it is computed in, and one that differs is named. */
static void test_frozen__another_base_is_refused(void **state)
{
    (void)state;
    const comm alone = comm_alone("test");
    bench setup, other;
    model_dims dims;
    run_base base, again, third;
    bool there;
    char *folder = harness_temp(), source[STATUS_PATH_MAX];
    const hf_export_options how = {.dtype = HF_EXPORT_F32};
    const double changed = 7;
    snprintf(source, sizeof source, "%s/source", folder);
    open_bench(&setup, DT_F32, LORA_RANK);
    open_bench(&other, DT_BF16, LORA_RANK);
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_init(setup.registry, setup.queue, SEED));
    assert_ok(hf_export(setup.registry, setup.queue, &dims, source, &how));
    assert_ok(base_find(setup.registry, source, SEED, &alone, &base));
    assert_ok(base_find(other.registry, source, SEED, &alone, &again));
    assert_ok(base_check(&again, &base, false, "test"));
    assert_ok(base_note_lora(&base, (lora_kind){.rank = LORA_RANK, .alpha = 16}, "q_proj"));
    assert_ok(base_write(&base, folder));
    base_done(&again);
    assert_ok(base_read(folder, &again, &there));
    assert_true(there && again.count == base.count && again.lora.rank == LORA_RANK);
    assert_string_equal(again.lora_targets, "q_proj");

    const param *row = params_find(setup.registry, "model.visual.pos_embed.weight");
    assert_ok(params_write(row, setup.queue, row->count - 1, 1, &changed));
    assert_ok(hf_export(setup.registry, setup.queue, &dims, source, &how));
    assert_ok(base_find(setup.registry, source, SEED, &alone, &third));
    assert_int_equal(base_check(&third, &again, false, "test"), ST_CONFIG);
    assert_non_null(strstr(status_text(), row->name));
    base_done(&third);
    assert_ok(base_find(setup.registry, NULL, SEED, &alone, &third));
    assert_int_equal(base_check(&third, &again, false, "test"), ST_CONFIG);
    base_done(&third);
    const run_base plain = {.lora.rank = LORA_RANK}, none = {0};
    const run_base lengths = {.lora = {.rank = LORA_RANK, .dora = true}};
    assert_int_equal(base_check(&plain, &lengths, false, "test"), ST_CONFIG);
    assert_non_null(strstr(status_text(), "lora.dora true, and lora.dora is false now"));
    assert_int_equal(base_check(&lengths, &plain, false, "test"), ST_CONFIG);
    assert_ok(base_check(&lengths, &lengths, false, "test"));
    assert_ok(base_check(&none, &lengths, false, "test"));
    base_done(&again);
    base_done(&base);
    close_bench(&other);
    close_bench(&setup);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen__one_copy_and_no_state),
        cmocka_unit_test(test_frozen__same_first_values),
        cmocka_unit_test(test_frozen__reads_what_was_written),
        cmocka_unit_test(test_frozen__states_of_both_types),
        cmocka_unit_test(test_frozen__what_the_base_has_is_not_written),
        cmocka_unit_test(test_frozen__an_export_loses_no_bits),
        cmocka_unit_test(test_frozen__another_base_is_refused),
    };
    return cmocka_run_group_tests_name("frozen", tests, NULL, NULL);
}
