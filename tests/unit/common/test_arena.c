/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of arena.h: allocations are aligned and do not overlap, the cap holds, marks give back what
 * was allocated after them, and blocks are used again. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/arena.h"

static void test_alloc__aligned_and_apart(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    uint8_t *last = NULL;
    for (size_t size = 0; size < 300; size++) {
        void *block;
        assert_ok(arena_alloc(&memory, size * 37, &block));
        assert_int_equal((uintptr_t)block % 64, 0);
        memset(block, (int)size, size * 37);
        if (size > 1)
            assert_int_equal(last[0], (uint8_t)(size - 1)); /* nothing wrote over it */
        last = (uint8_t *)block;
    }
    arena_done(&memory);
    arena_done(&memory);
}

static void test_cap__refuses_and_survives(void **state)
{
    (void)state;
    arena memory;
    void *block;
    arena_init(&memory, 1024);
    assert_ok(arena_alloc(&memory, 1000, &block));
    assert_fails(ST_NO_MEMORY, arena_alloc(&memory, 64, &block), "cap");
    assert_fails(ST_NO_MEMORY, arena_alloc(&memory, SIZE_MAX, &block), "cannot be met");
    assert_fails(ST_NO_MEMORY, arena_calloc(&memory, SIZE_MAX / 2, 4, &block), "overflow");
    arena_reset(&memory);
    assert_ok(arena_alloc(&memory, 1024, &block));
    arena_done(&memory);
}

static void test_release__gives_back_what_came_after(void **state)
{
    (void)state;
    arena memory;
    void *keep, *block, *again;
    arena_init(&memory, 0);
    assert_ok(arena_calloc(&memory, 1, 100, &keep));
    arena_mark mark = arena_save(&memory);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 50; i++) {
            assert_ok(arena_alloc(&memory, 10000, &block));
            memset(block, 0xEE, 10000);
        }
        arena_release(&memory, mark);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(((uint8_t *)keep)[i], 0);
    assert_ok(arena_alloc(&memory, 8, &block));
    arena_release(&memory, mark);
    assert_ok(arena_alloc(&memory, 8, &again));
    assert_ptr_equal(block, again);
    char *text;
    assert_ok(arena_strndup(&memory, "hello world", 5, &text));
    assert_string_equal(text, "hello");
    arena_done(&memory);
}

static void test_trim__keeps_small_blocks_and_frees_large_ones(void **state)
{
    (void)state;
    enum { LITTLE = 1 << 20, KEEP = 4 << 20 };
    arena memory;
    void *block, *again;
    arena_init(&memory, 64 << 20);
    assert_ok(arena_alloc(&memory, LITTLE, &block));
    arena_trim(&memory, KEEP);
    assert_ok(arena_alloc(&memory, LITTLE, &again));
    assert_ptr_equal(block, again);
    assert_ok(arena_alloc(&memory, KEEP, &block));
    arena_trim(&memory, KEEP);
    assert_null(memory.first);
    assert_int_equal(memory.used_bytes, 0);
    assert_fails(ST_NO_MEMORY, arena_alloc(&memory, (64 << 20) + 1, &block), "cap");
    assert_ok(arena_alloc(&memory, LITTLE, &block));
    arena_done(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc__aligned_and_apart),
        cmocka_unit_test(test_cap__refuses_and_survives),
        cmocka_unit_test(test_release__gives_back_what_came_after),
        cmocka_unit_test(test_trim__keeps_small_blocks_and_frees_large_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
