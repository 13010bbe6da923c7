/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of endpoints.c: how many threads ZeroMQ gets, and which of them serve consumers and which
 * workers. */
#include "tests/harness.h"

#include "prepd/serve/shell.h"
#include "tests/unit/prepd/conf_defaults.h"

static io_threads over(const char *endpoint, const char *keys, int64_t wanted, int cpus)
{
    conf options = conf_defaults();
    options.prepd_endpoint = endpoint;
    options.prepd_keys = keys;
    options.prepd_io_threads = wanted;
    return io_threads_of(&options, cpus);
}

static void test_wanted__is_taken_and_split(void **state)
{
    (void)state;
    static const struct {
        int count;
        uint64_t consumers, workers;
    } want[] = {{1, 1, 1}, {2, 1, 2}, {3, 3, 6}, {4, 3, 12}, {32, 0xffff, 0xffff0000}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const io_threads io = over("ipc://s", "", want[i].count, 1);
        assert_int_equal(io.n_threads, want[i].count);
        assert_int_equal(io.consumers, want[i].consumers);
        assert_int_equal(io.workers, want[i].workers);
        assert_int_equal(io.consumers | io.workers,
                         (UINT64_C(1) << io.n_threads) - 1); /* every thread serves one of them */
    }
}

static void test_auto__depends_on_cpus_and_links(void **state)
{
    (void)state;
    assert_int_equal(over("ipc://s", "", 0, 1).n_threads, 1);
    assert_int_equal(over("tcp://127.0.0.1:1", "k", 0, 2).n_threads, 1);
    /* keys make no difference over ipc */
    assert_int_equal(over("ipc://s", "k", 0, 12).n_threads, 2);
    assert_int_equal(over("tcp://127.0.0.1:1", "", 0, 12).n_threads, 3);
    assert_int_equal(over("tcp://127.0.0.1:1", "k", 0, 12).n_threads, 4);
    assert_int_equal(over("tcp://127.0.0.1:1", "k", 0, 256).n_threads, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wanted__is_taken_and_split),
        cmocka_unit_test(test_auto__depends_on_cpus_and_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
