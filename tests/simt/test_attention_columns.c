/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention_columns.c: copies the columns of some heads out of an array of rows
 * (ops/cuda/attention_pack.h), which is not an op and so has no parity cases: every value is right,
 * and nothing around them changes. */
#include "tests/harness.h"

#include "tests/simt/device.h"
#include "tests/simt/simt.h"
#include "trainer/ops/cuda/attention_pack.h"

static void check_columns(stream *queue, int64_t rows, int64_t heads, int64_t head, int64_t width)
{
    const int64_t stride = (width + 3) / 4 * 4;
    device *dev = queue->dev;
    void *from, *to;
    assert_ok(dev->backend->alloc(dev, (size_t)(rows * heads) * sizeof(float), &from));
    assert_ok(dev->backend->alloc(dev, (size_t)(rows * stride) * sizeof(float), &to));
    for (int64_t i = 0; i < rows * heads; i++)
        ((float *)from)[i] = (float)(i + 1);
    for (int64_t i = 0; i < rows * stride; i++)
        ((float *)to)[i] = -1;
    const attention_columns_args args = {.rows = rows,
                                         .width = width,
                                         .from_stride = heads,
                                         .to_stride = stride,
                                         .from = (const float *)from + head,
                                         .to = to};
    assert_ok(cuda_attention_columns(queue, &args));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < stride; i++) {
            float want = i < width ? (float)(row * heads + head + i + 1) : -1;
            assert_true(((float *)to)[row * stride + i] == want);
        }
    dev->backend->release(dev, from);
    dev->backend->release(dev, to);
}

static void test_columns__every_head(void **state)
{
    (void)state;
    device *dev;
    stream *queue;
    assert_ok(backend_simt()->open(&(device_options){0}, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    simt_schedule(SIMT_FORWARD, 1);
    for (int64_t head = 0; head < 16; head++)
        check_columns(queue, 301, 16, head, 1);
    for (int64_t head = 0; head < 6; head += 2)
        check_columns(queue, 301, 6, head, 2);
    check_columns(queue, 1, 300, 1, 299);
    check_columns(queue, 0, 4, 0, 2);
    dev->backend->stream_free(&queue);
    dev->backend->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_columns__every_head)};
    return cmocka_run_group_tests_name("attention_columns", tests, NULL, NULL);
}
