/* SPDX-License-Identifier: Apache-2.0 */
/* test_hf_values.c: whatever a rank holds of a tensor, several threads take the right values of it.
 * Every value is the number of its element. Letters: i a row, j a column of an expert's matrix. */
#include "tests/harness.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/checkpoint/hf/hf_load.h"

enum { COUNT = 1 << 17, THREADS = 3 };

/* A file that is mapped, since what was taken is dropped from memory. */
static float *map_numbers(void)
{
    float *numbers = NULL;
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), COUNT * sizeof *numbers), 0);
    numbers =
        mmap(NULL, COUNT * sizeof *numbers, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    assert_true(numbers != MAP_FAILED);
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)i;
    fclose(file);
    return numbers;
}

static st_tensor tensor_of(const float *numbers)
{
    return (st_tensor){
        .name = "numbers", .dtype = DT_F32, .data = span_of(numbers, COUNT * sizeof *numbers)};
}

static void test_hf_values__a_part_of_a_matrix(void **state)
{
    (void)state;
    enum { ROWS = 64, COLUMNS = COUNT / ROWS, SHARES = 2 };
    float *numbers = map_numbers();
    const st_tensor tensor = tensor_of(numbers);
    for (int64_t share = 0; share < SHARES; share++) {
        int64_t bytes = 0;
        hf_values values;
        param weight = {.held = slice_whole(ROWS, COLUMNS, 1, 1)};
        slice_cut(&weight.held, 1, share, SHARES);
        const int64_t width = COLUMNS / SHARES, count = ROWS * width - 100;
        assert_ok(hf_values_open(0, 0, THREADS, &bytes, &values));
        hf_values_take(&values, &weight, &tensor, 100, count);
        for (int64_t at = 0; at < count; at++) {
            const int64_t i = (at + 100) / width, j = (at + 100) % width + share * width;
            assert_int_equal((int64_t)values.taken[at], i * COLUMNS + j);
        }
        assert_int_equal(bytes, count * 4);
        hf_values_close(&values);
    }
    munmap(numbers, COUNT * sizeof *numbers);
}

/* Two pieces of an expert's matrix, of which this rank holds a share of both. */
static void test_hf_values__columns_are_transposed(void **state)
{
    (void)state;
    enum { IN = 50, HALF = 38, OUT = 2 * HALF, SHARES = 2, OWN = OUT / SHARES, FIRST = 1000 };
    float *numbers = map_numbers();
    const st_tensor tensor = tensor_of(numbers);
    for (int64_t share = 0; share < SHARES; share++) {
        int64_t bytes = 0;
        hf_values values;
        param weight = {.held = slice_whole(1, IN, 2, HALF), .local = {1, IN, OWN}};
        slice_cut(&weight.held, 3, share, SHARES);
        assert_ok(hf_values_open(IN * OWN, IN, THREADS, &bytes, &values));
        for (int piece = 0; piece < 2; piece++)
            hf_values_take_columns(
                &values, &weight,
                &(hf_columns){&tensor, FIRST + piece * HALF * IN, piece * HALF, HALF});
        for (int64_t i = 0; i < IN; i++)
            for (int64_t j = 0; j < OWN; j++) {
                const int64_t half = OWN / 2;
                const int64_t column = j / half * HALF + share * half + j % half;
                assert_int_equal((int64_t)values.taken[i * OWN + j], FIRST + column * IN + i);
            }
        assert_int_equal(bytes, IN * OWN * 4);
        hf_values_close(&values);
    }
    munmap(numbers, COUNT * sizeof *numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf_values__a_part_of_a_matrix),
        cmocka_unit_test(test_hf_values__columns_are_transposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
