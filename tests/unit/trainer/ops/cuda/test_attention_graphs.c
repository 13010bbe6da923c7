/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention_graphs.c: whether the real cuDNN accepts our attention graphs for an H200 that is
 * only described to it: it matches them, compiles them and says how much memory they need. Nothing
 * runs; tests/parity/attention.c tests what attention computes. Skipped where there is no cuDNN. */
#include "tests/harness.h"

#include <string.h>

#include "trainer/ops/cuda/attention_graphs.h"

static const char H200[] =
    "{\"cudaDeviceId\": 0, \"deviceName\": \"NVIDIA H200\", \"deviceVer\": 900, \"driverVer\": "
    "13000, \"isTccDriver\": 0, \"l2CacheSize\": 62914560, \"maxBlockSize\": [1024, 1024, 64], "
    "\"maxCtasPerSM\": 32, \"maxGridSize\": [2147483647, 65535, 65535], \"maxRegistersPerSM\": "
    "65536, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": 232448, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"memClockRateKHz\": 3201000, "
    "\"multiProcessorCount\": 132, \"pciDeviceId\": 0, \"regsPerBlock\": 65536, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"smClockRateKHz\": 1980000, \"supportCoopLaunch\": "
    "1, \"totalGlobalMem\": 150754820096, \"warpSize\": 32}";

enum { DESCRIBES_DEVICES = 90800 /* cuDNN 9.8 */, PLENTY = 64 << 10 };

static cudnnBackendDescriptor_t describe_device(void)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (cudnn_open() != ST_OK || cudnn_api()->GetVersion() < DESCRIBES_DEVICES) {
        print_message("skipped: %s\n", cudnn_open() == ST_OK ? "cuDNN before 9.8" : status_text());
        skip();
    }
    assert_int_equal(
        cudnn_api()->BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &descriptor), 0);
    assert_int_equal(cudnn_api()->BackendSetAttribute(descriptor,
                                                      CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                      CUDNN_TYPE_CHAR, sizeof H200 - 1, H200),
                     0);
    assert_int_equal(cudnn_api()->BackendFinalize(descriptor), 0);
    return descriptor;
}

/* Builds each graph once, since compiling takes the library seconds. dp is the size of what the
 * deterministic backward keeps in memory. */
static void check_shape(const attention_shape *shape, double dp)
{
    cudnnBackendDescriptor_t descriptor = describe_device();
    cudnn_target target = {.properties = descriptor};
    cudnn_plan plan_ = {0};
    assert_ok(attention_graph_forward(shape, &target, &plan_));
    assert_true(plan_.workspace_bytes < PLENTY);
    cudnn_plan_done(&plan_);
    assert_ok(attention_graph_backward(shape, &target, &plan_));
    assert_true(plan_.workspace_bytes < PLENTY);
    cudnn_plan_done(&plan_);
    attention_shape again = *shape;
    again.deterministic = 1;
    target.deterministic = true;
    assert_ok(attention_graph_backward(&again, &target, &plan_));
    assert_in_range((double)plan_.workspace_bytes - dp, 0, PLENTY);
    cudnn_plan_done(&plan_);
    cudnn_api()->BackendDestroyDescriptor(descriptor);
}

/* The documents of one row of 30B-A3B. */
static void test_graphs__text(void **state)
{
    (void)state;
    attention_shape shape = {.segments = 48,
                             .longest = 1024,
                             .heads = 32,
                             .kv_heads = 4,
                             .head_dim = 128,
                             .q_stride = 4096,
                             .k_stride = 512,
                             .v_stride = 512,
                             .o_stride = 4096,
                             .lse_stride = 32,
                             .causal = 1};
    check_shape(&shape, 2.0 * 48 * 32 * 1024 * 1024);
}

/* The frames of the vision tower, with q, k and v side by side. */
static void test_graphs__vision(void **state)
{
    (void)state;
    attention_shape shape = {.segments = 32,
                             .longest = 2048,
                             .heads = 16,
                             .kv_heads = 16,
                             .head_dim = 72,
                             .q_stride = 3456,
                             .k_stride = 3456,
                             .v_stride = 3456,
                             .o_stride = 1152,
                             .lse_stride = 16};
    check_shape(&shape, 2.0 * 32 * 16 * 2048 * 2048);
}

/* Two of the tower's heads, whose log-sums were copied to rows of four. */
static void test_graphs__group_of_heads(void **state)
{
    (void)state;
    cudnnBackendDescriptor_t descriptor = describe_device();
    attention_shape shape = {.segments = 4,
                             .longest = 16384,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 72,
                             .q_stride = 3456,
                             .k_stride = 3456,
                             .v_stride = 3456,
                             .o_stride = 1152,
                             .lse_stride = 4,
                             .deterministic = 1};
    cudnn_target target = {.properties = descriptor, .deterministic = true};
    cudnn_plan plan_ = {0};
    assert_ok(attention_graph_backward(&shape, &target, &plan_));
    assert_in_range((double)plan_.workspace_bytes - 2.0 * 4 * 2 * 16384 * 16384, 0, PLENTY);
    cudnn_plan_done(&plan_);
    cudnn_api()->BackendDestroyDescriptor(descriptor);
}

/* One key-value head over one whole row of 12,288 tokens, which is a separate run. */
static void test_graphs__run_of_segments(void **state)
{
    (void)state;
    cudnnBackendDescriptor_t descriptor = describe_device();
    attention_shape shape = {.segments = 1,
                             .longest = 12288,
                             .heads = 8,
                             .kv_heads = 1,
                             .head_dim = 128,
                             .q_stride = 4096,
                             .k_stride = 512,
                             .v_stride = 512,
                             .o_stride = 4096,
                             .lse_stride = 32,
                             .causal = 1,
                             .deterministic = 1};
    cudnn_target target = {.properties = descriptor, .deterministic = true};
    cudnn_plan plan_ = {0};
    assert_ok(attention_graph_backward(&shape, &target, &plan_));
    assert_in_range((double)plan_.workspace_bytes - 2.0 * 8 * 12288 * 12288, 0, PLENTY);
    cudnn_plan_done(&plan_);
    cudnn_api()->BackendDestroyDescriptor(descriptor);
}

/* A failure says what was wanted, and nothing is leaked. */
static void test_graphs__no_engine(void **state)
{
    (void)state;
    cudnnBackendDescriptor_t descriptor = describe_device();
    attention_shape shape = {.segments = 2,
                             .longest = 64,
                             .heads = 2,
                             .kv_heads = 2,
                             .head_dim = 12, /* not a multiple of 8 */
                             .q_stride = 24,
                             .k_stride = 24,
                             .v_stride = 24,
                             .o_stride = 24,
                             .lse_stride = 2};
    cudnn_target target = {.properties = descriptor};
    cudnn_plan plan_ = {0};
    assert_fails(ST_UNAVAILABLE, attention_graph_forward(&shape, &target, &plan_), "has no engine");
    cudnn_api()->BackendDestroyDescriptor(descriptor);
}

/* Engines that take a graph are passed over one by one, as the trial before step 1 asks, and after
 * the last of them there is no other. */
static void test_graphs__engines_are_passed_over(void **state)
{
    (void)state;
    enum { MORE_THAN_THERE_ARE = 16 };
    cudnnBackendDescriptor_t descriptor = describe_device();
    attention_shape shape = {.segments = 4,
                             .longest = 256,
                             .heads = 16,
                             .kv_heads = 16,
                             .head_dim = 72,
                             .q_stride = 3456,
                             .k_stride = 3456,
                             .v_stride = 3456,
                             .o_stride = 1152,
                             .lse_stride = 16};
    cudnn_target target = {.properties = descriptor};
    cudnn_plan plan_ = {0};
    status st;
    while ((st = attention_graph_forward(&shape, &target, &plan_)) == ST_OK) {
        cudnn_plan_done(&plan_);
        assert_true(++target.passed_over < MORE_THAN_THERE_ARE);
    }
    assert_int_equal(st, ST_UNAVAILABLE);
    assert_non_null(strstr(status_text(), "has no other engine"));
    print_message("%d engines take this graph\n", target.passed_over);
    assert_true(target.passed_over > 0);
    cudnn_api()->BackendDestroyDescriptor(descriptor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs__text),
        cmocka_unit_test(test_graphs__vision),
        cmocka_unit_test(test_graphs__group_of_heads),
        cmocka_unit_test(test_graphs__run_of_segments),
        cmocka_unit_test(test_graphs__no_engine),
        cmocka_unit_test(test_graphs__engines_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
