/* test_device.c: opening a device, its memory and copies, and how `auto` chooses between the
 * backends. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"

static void test_device_open__cpu(void **state)
{
    (void)state;
    device *d = NULL;
    stream *s = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &d));
    assert_string_equal(d->backend->name, "cpu");
    assert_non_null(strstr(d->description, "2 threads"));
    assert_non_null(strstr(d->description, "OpenBLAS"));
    assert_ok(d->backend->stream_new(d, &s));

    void *x = NULL, *none = NULL;
    assert_ok(d->backend->alloc(d, 1000, &x));
    assert_ok(d->backend->alloc(d, 0, &none));
    assert_int_equal((uintptr_t)x % 256, 0);
    char host[1000], back[1000];
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(((char *)x)[i], 0);
        host[i] = (char)i;
    }
    assert_ok(d->backend->to_device(s, x, host, sizeof host));
    assert_ok(d->backend->copy(s, (char *)x + 500, x, 500));
    assert_ok(d->backend->zero(s, x, 10));
    assert_ok(d->backend->to_host(s, back, x, sizeof back));
    assert_ok(d->backend->wait(s));
    assert_int_equal(back[9], 0);
    assert_int_equal(back[10], host[10]);
    assert_memory_equal(back + 500, host, 500);

    size_t used = 0, total = 0;
    assert_ok(d->backend->memory(d, &used, &total));
    assert_true(used > 0 && used < total);
    d->backend->release(d, x);
    d->backend->release(d, none);
    d->backend->stream_free(&s);
    d->backend->stream_free(&s);
    device_close(&d);
    device_close(&d);
    assert_null(d);
}

static void test_device_open__no_second_cpu(void **state)
{
    (void)state;
    device *d = NULL;
    assert_fails(ST_UNAVAILABLE,
                 device_open(BACKEND_CPU, &(device_options){.index = 1, .threads = 1}, &d),
                 "there is no CPU device 1");
    assert_null(d);
}

/* Without a GPU, or without ops for it, `auto` must give a CPU device that has every op. */
static void test_device_open__auto_has_every_op(void **state)
{
    (void)state;
    device *d = NULL;
    assert_ok(device_open(BACKEND_AUTO, &(device_options){.threads = 1}, &d));
#define OP(name) assert_true(d->ops->name != NULL);
#include "trainer/ops/ops.def"
    device_close(&d);
}

static void test_device_open__cuda_says_why_not(void **state)
{
    (void)state;
    device *d = NULL;
    status st = device_open(BACKEND_CUDA, &(device_options){.threads = 1}, &d);
    if (st == ST_OK) { /* there is a GPU: an op that is not built fails by name */
        stream *s = NULL;
        assert_ok(d->backend->stream_new(d, &s));
        if (!d->ops->gemm)
            assert_fails(ST_BAD_DEVICE, op_gemm(s, &(gemm_args){0}), "cuda has no op gemm");
        d->backend->stream_free(&s);
        device_close(&d);
        return;
    }
    assert_int_equal(st, ST_UNAVAILABLE);
    assert_non_null(strstr(status_text(), "CUDA"));
    print_message("%s\n", status_text());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_open__cpu),
        cmocka_unit_test(test_device_open__no_second_cpu),
        cmocka_unit_test(test_device_open__auto_has_every_op),
        cmocka_unit_test(test_device_open__cuda_says_why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
