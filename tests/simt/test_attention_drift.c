/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention_drift.c: attention's sums stay as they are while the largest score does. All keys
 * have the same score and there are eight tiles of them, so the first tile must be an eighth of the
 * output. The scores are so large that it would be four percent less if the sums shrank at every
 * tile by a rounding error of the base of the exponents. Letters: q, v, o what attention reads and
 * writes; x a number. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"

#include "tests/simt/device.h"
#include "tests/simt/simt.h"
#include "trainer/ops/table.h"

enum { TOKENS = 512, TILE = 64, WIDTH = 16 };

static uint16_t to_act(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float from_act(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static void test_attention__sums_do_not_drift(void **state)
{
    (void)state;
    static _Alignas(16) uint16_t q[TOKENS * WIDTH], v[TOKENS * WIDTH], o[TOKENS * WIDTH];
    static float lse[TOKENS];
    static const int32_t cu[] = {0, TOKENS};
    device *dev;
    stream *queue;
    assert_ok(backend_simt()->open(&(device_options){0}, &dev));
    assert_ok(dev->backend->stream_new(dev, &queue));
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        q[i] = to_act(216);
        v[i] = to_act(i < TILE * WIDTH);
    }
    simt_schedule(SIMT_FORWARD, 1);
    assert_ok(op_attention_fwd(queue, &(attention_fwd_args){.tokens = TOKENS,
                                                            .heads = 1,
                                                            .kv_heads = 1,
                                                            .head_dim = WIDTH,
                                                            .segments = 1,
                                                            .scale = 0.25,
                                                            .cu = cu,
                                                            .q = q,
                                                            .k = q,
                                                            .v = v,
                                                            .o = o,
                                                            .lse = lse,
                                                            .q_stride = WIDTH,
                                                            .k_stride = WIDTH,
                                                            .v_stride = WIDTH,
                                                            .o_stride = WIDTH}));
    const float share = (float)TILE / TOKENS;
    for (int i = 0; i < TOKENS * WIDTH; i++)
        assert_true(fabsf(from_act(o[i]) - share) <= share / 128);
    dev->backend->stream_free(&queue);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention__sums_do_not_drift)};
    return cmocka_run_group_tests_name("attention_drift", tests, NULL, NULL);
}
