/* test_paced.c: what paced.cu promises about time, by the harness's clock: nothing is written
 * before the wait is over, writing is never more than a chunk ahead of the pace, and it does not
 * end early. tests/parity/paced.c checks that the bytes are right. Letters: x what a kernel reads;
 * y what it writes. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "tests/simt/device.h"
#include "tests/simt/simt.h"
#include "trainer/ops/table.h"

enum { CHUNK = 1 << 17, CHUNKS = 5, BYTES = CHUNKS * CHUNK - 64, WAIT_NS = 5000, SPAN_NS = 400000 };

typedef struct watched {
    const unsigned char *y; /* [BYTES], 0 where nothing was written */
    int64_t start, last;    /* the first and last reading of the clock */
    /* early: the most bytes that ever were there beyond what the pace allows. */
    int64_t looks, early;
} watched;

static int64_t written(const unsigned char *y)
{
    int64_t count = 0;
    for (int64_t i = 0; i < BYTES; i += 64)
        count += y[i] != 0;
    return 64 * count;
}

static void watch_copy(void *of, int64_t ns)
{
    watched *seen = of;
    if (seen->looks++ == 0)
        seen->start = ns;
    seen->last = ns;
    int64_t there = written(seen->y), on = ns - seen->start - WAIT_NS;
    int64_t allowed = on < 0 ? 0 : (on * CHUNKS / SPAN_NS + 1) * CHUNK;
    if (there - allowed > seen->early)
        seen->early = there - allowed;
}

static void open_simt(device **dev, stream **queue)
{
    assert_ok(backend_simt()->open(&(device_options){0}, dev));
    assert_ok((*dev)->backend->stream_new(*dev, queue));
    simt_schedule(SIMT_FORWARD, 1);
}

static void test_paced__keeps_the_pace(void **state)
{
    (void)state;
    device *dev;
    stream *queue;
    void *x, *y;
    open_simt(&dev, &queue);
    assert_ok(dev->backend->alloc(dev, BYTES, &x));
    assert_ok(dev->backend->alloc(dev, BYTES, &y));
    memset(x, 7, BYTES);
    watched seen = {.y = y};
    simt_on_clock(watch_copy, &seen);
    const paced_copy_args args = {
        .pace = {WAIT_NS, SPAN_NS, 1}, .n = 1, .run = {{y, x, BYTES, BYTES}}};
    assert_ok(op_paced_copy(queue, &args));
    simt_on_clock(NULL, NULL);
    assert_memory_equal(x, y, BYTES);
    assert_true(seen.looks > CHUNKS);
    assert_int_equal(seen.early, 0);
    /* The first thread's first reading is the start; the other 511 threads read the clock after
     * it. */
    assert_true(seen.last - seen.start >= WAIT_NS + SPAN_NS);
    dev->backend->release(dev, x);
    dev->backend->release(dev, y);
    dev->backend->stream_free(&queue);
    dev->backend->close(dev);
}

/* Blocks that have no chunk are not started, and each of several blocks keeps the pace of its own
 * share. */
static void test_paced__blocks_share_the_chunks(void **state)
{
    (void)state;
    device *dev;
    stream *queue;
    void *x, *y;
    open_simt(&dev, &queue);
    assert_ok(dev->backend->alloc(dev, 8 * BYTES, &x));
    assert_ok(dev->backend->alloc(dev, BYTES, &y));
    float *number = x;
    for (int64_t i = 0; i < 8 * BYTES / (int64_t)sizeof(float); i++)
        number[i] = (float)(i % 1000);
    watched seen = {.y = y};
    simt_on_clock(watch_copy, &seen);
    const int64_t count = BYTES / (int64_t)sizeof(float);
    const paced_sum_args args = {
        .pace = {WAIT_NS, SPAN_NS, 64}, .n = count, .pieces = 8, .acc = true, .x = x, .y = y};
    assert_ok(op_paced_sum(queue, &args));
    simt_on_clock(NULL, NULL);
    /* The harness runs blocks one after the other, so each of the 10 chunks of 16384 elements takes
     * its whole time. */
    const int64_t blocks = (count + (1 << 14) - 1) / (1 << 14);
    assert_true(seen.last - seen.start >= blocks * (WAIT_NS + SPAN_NS));
    assert_true(seen.last - seen.start < (blocks + 1) * (WAIT_NS + SPAN_NS));
    for (int64_t i = 0; i < count; i += 101) {
        float want = 0;
        for (int64_t peer = 0; peer < 8; peer++)
            want += number[peer * count + i];
        assert_true(((float *)y)[i] == want);
    }
    dev->backend->release(dev, x);
    dev->backend->release(dev, y);
    dev->backend->stream_free(&queue);
    dev->backend->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paced__keeps_the_pace),
        cmocka_unit_test(test_paced__blocks_share_the_chunks),
    };
    return cmocka_run_group_tests_name("paced", tests, NULL, NULL);
}
