/* SPDX-License-Identifier: Apache-2.0 */
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
    device *dev = NULL;
    stream *queue = NULL;
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 2}, &dev));
    assert_string_equal(dev->backend->name, "cpu");
    assert_non_null(strstr(dev->description, "2 threads"));
    assert_non_null(strstr(dev->description, "OpenBLAS"));
    assert_ok(dev->backend->stream_new(dev, &queue));

    void *memory = NULL, *none = NULL;
    assert_ok(dev->backend->alloc(dev, 1000, &memory));
    assert_ok(dev->backend->alloc(dev, 0, &none));
    assert_int_equal((uintptr_t)memory % 256, 0);
    char host[1000], back[1000];
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(((char *)memory)[i], 0);
        host[i] = (char)i;
    }
    assert_ok(dev->backend->to_device(queue, memory, host, sizeof host));
    assert_ok(dev->backend->copy(queue, (char *)memory + 500, memory, 500));
    assert_ok(dev->backend->zero(queue, memory, 10));
    assert_ok(dev->backend->to_host(queue, back, memory, sizeof back));
    assert_ok(dev->backend->wait(queue));
    assert_int_equal(back[9], 0);
    assert_int_equal(back[10], host[10]);
    assert_memory_equal(back + 500, host, 500);

    size_t used = 0, total = 0;
    assert_ok(dev->backend->memory(dev, &used, &total));
    assert_true(used > 0 && used < total);
    dev->backend->release(dev, memory);
    dev->backend->release(dev, none);
    dev->backend->stream_free(&queue);
    dev->backend->stream_free(&queue);
    device_close(&dev);
    device_close(&dev);
    assert_null(dev);
}

static void test_device_open__no_second_cpu(void **state)
{
    (void)state;
    device *dev = NULL;
    assert_fails(ST_UNAVAILABLE,
                 device_open(BACKEND_CPU, &(device_options){.index = 1, .threads = 1}, &dev),
                 "there is no CPU device 1");
    assert_null(dev);
}

/* Without a GPU, or without ops for it, `auto` must give a CPU device that has every op. */
static void test_device_open__auto_has_every_op(void **state)
{
    (void)state;
    device *dev = NULL;
    assert_ok(device_open(BACKEND_AUTO, &(device_options){.threads = 1}, &dev));
#define OP(name) assert_true(dev->ops->name != NULL);
#include "trainer/ops/ops.def"
    device_close(&dev);
}

static void test_device_open__cuda_says_why_not(void **state)
{
    (void)state;
    device *dev = NULL;
    status st = device_open(BACKEND_CUDA, &(device_options){.threads = 1}, &dev);
    if (st == ST_OK) { /* there is a GPU: an op that is not built fails by name */
        stream *queue = NULL;
        assert_ok(dev->backend->stream_new(dev, &queue));
        if (!dev->ops->gemm)
            assert_fails(ST_BAD_DEVICE, op_gemm(queue, &(gemm_args){0}), "cuda has no op gemm");
        dev->backend->stream_free(&queue);
        device_close(&dev);
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
