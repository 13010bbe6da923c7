/* SPDX-License-Identifier: Apache-2.0 */
/* test_quantised.c: frozen matrices in codes. The codes are those of the published methods,
 * computed here in double; a model on codes is, to the bit, the model on what the codes stand for;
 * and every layout has the codes that one rank has. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/nf4_table.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/quantised.h"

static const char targets[] = "q_proj,o_proj,gate_up_proj,down_proj";
enum { SHARDS = 3, BLOCKS = 400 };

/* The distance of a share of the largest magnitude from the nearest value that a code can have. */
static double nearest(weight_form form, double share)
{
    double best = 2;
    if (form == WEIGHT_INT8)
        return fabs(share - rint(share * 127) / 127);
    for (int i = 0; i < 16; i++)
        best = fmin(best, fabs(share - nf4_published[i]));
    return best;
}

/* The share that a code stands for. nf4 has the first of two codes in the upper half of a byte. */
static double share_of(weight_form form, const uint8_t *codes, int64_t index)
{
    if (form == WEIGHT_INT8)
        return (codes[index] < 128 ? codes[index] : codes[index] - 256.0) / 127;
    return nf4_published[index % 2 ? codes[index / 2] & 15 : codes[index / 2] >> 4];
}

static void check_block(weight_form form, const float *from, int64_t count)
{
    uint8_t block[WEIGHT_SCALE + WEIGHT_BLOCK];
    float scale, back[WEIGHT_BLOCK];
    double largest = 0;
    assert_true(weight_encode(form, from, count, block));
    memcpy(&scale, block, sizeof scale);
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)from[i]));
    const double wanted = form == WEIGHT_INT8 ? largest / 127 : largest;
    assert_true(fabs((double)scale - wanted) <= wanted * 1e-7);
    weight_decode(form, block, count, back);
    for (int64_t i = 0; i < count; i++) {
        const double share = largest > 0 ? (double)from[i] / largest : 0;
        const double coded = share_of(form, block + WEIGHT_SCALE, i);
        assert_true(fabs(share - coded) <= nearest(form, share) + 1e-6);
        assert_true(fabs((double)back[i] - coded * largest) <= largest * 1e-6);
    }
}

static void test_quantised__codes_are_the_nearest(void **state)
{
    (void)state;
    const rng_key key = rng_key_make(7, "blocks");
    float from[WEIGHT_BLOCK];
    for (int k = 0; k < BLOCKS; k++) {
        const int64_t count = k % 3 ? WEIGHT_BLOCK : 1 + k % WEIGHT_BLOCK;
        for (int64_t i = 0; i < count; i++)
            from[i] = k == 1 ? 0
                             : (float)(rng_normal(key, (uint64_t)(k * WEIGHT_BLOCK + i)) *
                                       pow(10, k % 9 - 6));
        check_block(WEIGHT_INT8, from, count);
        check_block(WEIGHT_NF4, from, count);
    }
    uint8_t block[WEIGHT_SCALE + WEIGHT_BLOCK] = {0};
    from[3] = INFINITY;
    assert_false(weight_encode(WEIGHT_NF4, from, WEIGHT_BLOCK, block));
    from[3] = NAN;
    assert_false(weight_encode(WEIGHT_INT8, from, WEIGHT_BLOCK, block));
    assert_int_equal(block[0], 0);
}

static void open_model(fixture *setup, weight_form form)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    fixture_open(setup, &dims);
    params_release(setup->registry, setup->queue);
    assert_ok(lora_add(setup->registry, (lora_kind){.rank = 3, .alpha = 6}, targets));
    if (form != WEIGHT_PLAIN)
        assert_ok(quantised_choose(setup->registry, form));
    fixture_alloc_anew(setup);
    row packed = fixture_row(setup, debug_documents, 3, true);
    model_options options = {.training = true};
    batch_caps_for(&packed, 1, 64, 64, &options.cap);
    model_options_freeze(&options, setup->registry);
    fixture_model(setup, &options, false);
}

/* Gives the plain matrices the values that the codes stand for. */
static int64_t copy_decoded(const fixture *from, const fixture *to)
{
    int64_t coded = 0;
    for (int64_t i = 0; i < from->registry->count; i++) {
        const param *weight = &from->registry->list[i];
        if (weight->form == WEIGHT_PLAIN)
            continue;
        double *values = malloc((size_t)weight->count * sizeof *values);
        assert_non_null(values);
        assert_ok(params_read_value(weight, from->queue, 0, weight->count, values));
        assert_ok(params_write(&to->registry->list[i], to->queue, 0, weight->count, values));
        double *part = malloc((size_t)weight->count * sizeof *part);
        assert_non_null(part);
        assert_ok(params_read_value(weight, from->queue, 3, weight->count - 7, part));
        assert_memory_equal(part, values + 3, (size_t)(weight->count - 7) * sizeof *part);
        free(part);
        free(values);
        coded++;
    }
    return coded;
}

static void check_same(weight_form form)
{
    fixture coded, plain;
    open_model(&coded, form);
    open_model(&plain, WEIGHT_PLAIN);
    row packed = fixture_row(&coded, debug_documents, 3, true);
    row same = fixture_row(&plain, debug_documents, 3, true);
    const double before = fixture_forward_backward(&plain, &same, 1);
    assert_true(copy_decoded(&coded, &plain) > 0);
    const double loss = fixture_forward_backward(&coded, &packed, 1);
    const double wanted = fixture_forward_backward(&plain, &same, 1);
    assert_true(loss == wanted);
    assert_true(loss != before && fabs(loss - before) < before * 0.2);
    for (int64_t i = 0; i < plain.registry->count; i++) {
        const param *weight = &plain.registry->list[i];
        if (weight->adapter)
            assert_memory_equal(weight->grad, coded.registry->list[i].grad,
                                (size_t)weight->count * sizeof(float));
    }
    fixture_close(&coded);
    fixture_close(&plain);
}

static void test_quantised__a_model_on_codes_is_the_one_on_their_values(void **state)
{
    (void)state;
    check_same(WEIGHT_INT8);
    check_same(WEIGHT_NF4);
}

/* One rank's part of a model whose values are drawn; the mesh has no connections. */
typedef struct piece {
    mesh ranks;
    params *registry;
} piece;

static void open_piece(piece *part, const fixture *setup, const layout *degrees, int rank)
{
    assert_ok(params_new(&setup->dims, &part->registry));
    assert_ok(lora_add(part->registry, (lora_kind){.rank = 3, .alpha = 6}, targets));
    assert_ok(quantised_choose(part->registry, WEIGHT_NF4));
    mesh_sketch(degrees, rank, &part->ranks);
    assert_ok(params_cut(part->registry, &setup->dims, degrees, part->ranks.place));
    params_share(part->registry, &part->ranks, true);
    assert_ok(params_alloc(part->registry, setup->queue, true));
    assert_ok(params_init(part->registry, setup->queue, 5));
}

static layout split(int64_t shard, int64_t tensor)
{
    return (layout){.replicate = 1,
                    .shard = shard,
                    .context = 1,
                    .tensor = tensor,
                    .pipeline = 1,
                    .expert = 1,
                    .expert_tensor = 1,
                    .world = shard * tensor,
                    .accumulation = 1};
}

static void test_quantised__shards_have_the_codes_of_one_rank(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    piece alone, part[SHARDS];
    const layout one = split(1, 1), shards = split(SHARDS, 1);
    const size_t size = (size_t)weight_block_bytes(WEIGHT_NF4);
    assert_ok(dims_preset("debug", &dims));
    fixture_open(&setup, &dims);
    open_piece(&alone, &setup, &one, 0);
    for (int rank = 0; rank < SHARDS; rank++)
        open_piece(&part[rank], &setup, &shards, rank);
    int64_t divided = 0;
    for (int64_t i = 0; i < alone.registry->count; i++) {
        const param *whole = &alone.registry->list[i];
        int64_t stored = 0;
        if (whole->form == WEIGHT_PLAIN)
            continue;
        assert_int_equal(whole->own_n, whole->count);
        for (int rank = 0; rank < SHARDS; rank++) {
            const param *weight = &part[rank].registry->list[i];
            if (weight->own_n == 0)
                continue;
            assert_int_equal(weight->own_first, stored);
            stored += weight->own_n;
            const int64_t first = quantised_block_of(weight, weight->own_first);
            const int64_t end = quantised_block_of(weight, stored);
            assert_memory_equal(weight->own_blocks,
                                (char *)whole->own_blocks + (size_t)first * size,
                                (size_t)(end - first) * size);
            divided += stored < weight->count;
        }
        assert_int_equal(stored, whole->count);
    }
    assert_true(divided > 0);
    for (int rank = 0; rank < SHARDS; rank++) {
        params_release(part[rank].registry, setup.queue);
        params_free(&part[rank].registry);
    }
    params_release(alone.registry, setup.queue);
    params_free(&alone.registry);
    fixture_close(&setup);
}

static void test_quantised__what_cannot_be_is_refused(void **state)
{
    (void)state;
    model_dims dims;
    params *registry;
    layout degrees = split(1, 8);
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    assert_ok(params_new(&dims, &registry));
    assert_int_equal(quantised_choose(registry, WEIGHT_NF4), ST_CONFIG);
    assert_non_null(strstr(status_text(), "lora.base"));
    params_free(&registry);

    /* With experts cut in eight, a row of gate and up has 96 columns of each. */
    dims.text.heads = dims.text.kv_heads = 8;
    assert_ok(params_new(&dims, &registry));
    assert_ok(lora_add(registry, (lora_kind){.rank = 3, .alpha = 6}, "q_proj"));
    assert_ok(quantised_choose(registry, WEIGHT_NF4));
    assert_ok(params_cut(registry, &dims, &degrees, mesh_place_of(&degrees, 1)));
    params_free(&registry);
    degrees.expert_tensor = 8;
    assert_ok(params_new(&dims, &registry));
    assert_ok(lora_add(registry, (lora_kind){.rank = 3, .alpha = 6}, "q_proj"));
    assert_ok(quantised_choose(registry, WEIGHT_NF4));
    assert_int_equal(params_cut(registry, &dims, &degrees, mesh_place_of(&degrees, 1)), ST_CONFIG);
    assert_non_null(strstr(status_text(), "gate_up_proj"));
    params_free(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantised__codes_are_the_nearest),
        cmocka_unit_test(test_quantised__a_model_on_codes_is_the_one_on_their_values),
        cmocka_unit_test(test_quantised__shards_have_the_codes_of_one_rank),
        cmocka_unit_test(test_quantised__what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
