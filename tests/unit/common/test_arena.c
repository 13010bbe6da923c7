/* Tests of arena.h: allocations are aligned and do not overlap, the cap holds, marks give back what
 * was allocated after them, and blocks are used again. */
#include "tests/harness.h"

#include <string.h>

#include "common/base/arena.h"

static void test_alloc__aligned_and_apart(void **state)
{
    (void)state;
    arena a;
    arena_init(&a, 0);
    uint8_t *last = NULL;
    for (size_t n = 0; n < 300; n++) {
        void *p;
        assert_ok(arena_alloc(&a, n * 37, &p));
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, (int)n, n * 37);
        if (n > 1)
            assert_int_equal(last[0], (uint8_t)(n - 1)); /* nothing wrote over it */
        last = (uint8_t *)p;
    }
    arena_done(&a);
    arena_done(&a);
}

static void test_cap__refuses_and_survives(void **state)
{
    (void)state;
    arena a;
    void *p;
    arena_init(&a, 1024);
    assert_ok(arena_alloc(&a, 1000, &p));
    assert_fails(ST_NO_MEMORY, arena_alloc(&a, 64, &p), "cap");
    assert_fails(ST_NO_MEMORY, arena_alloc(&a, SIZE_MAX, &p), "cannot be met");
    assert_fails(ST_NO_MEMORY, arena_calloc(&a, SIZE_MAX / 2, 4, &p), "overflow");
    arena_reset(&a);
    assert_ok(arena_alloc(&a, 1024, &p));
    arena_done(&a);
}

static void test_release__gives_back_what_came_after(void **state)
{
    (void)state;
    arena a;
    void *keep, *p, *again;
    arena_init(&a, 0);
    assert_ok(arena_calloc(&a, 1, 100, &keep));
    arena_mark mark = arena_save(&a);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 50; i++) {
            assert_ok(arena_alloc(&a, 10000, &p));
            memset(p, 0xEE, 10000);
        }
        arena_release(&a, mark);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(((uint8_t *)keep)[i], 0);
    assert_ok(arena_alloc(&a, 8, &p));
    arena_release(&a, mark);
    assert_ok(arena_alloc(&a, 8, &again));
    assert_ptr_equal(p, again);
    char *text;
    assert_ok(arena_strndup(&a, "hello world", 5, &text));
    assert_string_equal(text, "hello");
    arena_done(&a);
}

static void test_trim__keeps_small_blocks_and_frees_large_ones(void **state)
{
    (void)state;
    enum { LITTLE = 1 << 20, KEEP = 4 << 20 };
    arena a;
    void *p, *again;
    arena_init(&a, 64 << 20);
    assert_ok(arena_alloc(&a, LITTLE, &p));
    arena_trim(&a, KEEP);
    assert_ok(arena_alloc(&a, LITTLE, &again));
    assert_ptr_equal(p, again);
    assert_ok(arena_alloc(&a, KEEP, &p));
    arena_trim(&a, KEEP);
    assert_null(a.first);
    assert_int_equal(a.used_bytes, 0);
    assert_fails(ST_NO_MEMORY, arena_alloc(&a, (64 << 20) + 1, &p), "cap");
    assert_ok(arena_alloc(&a, LITTLE, &p));
    arena_done(&a);
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
