/* SPDX-License-Identifier: Apache-2.0 */
/* test_attention_choice.c: when cuDNN is asked for attention and when our own kernels run; that the
 * log gives the reason once; and that every pointer handed to cuDNN is aligned as its graph
 * declares. Library and device are stand-ins. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/program/log.h"
#include "trainer/device/cuda_device.h"
#include "trainer/ops/cuda/attention_cudnn.h"
#include "trainer/ops/cuda/attention_graphs.h"
#include "trainer/ops/cuda/attention_pack.h"
#include "trainer/ops/cuda/attention_portable.h"

status cuda_attention_fwd(stream *queue, const attention_fwd_args *args);
status cuda_attention_bwd(stream *queue, const attention_bwd_args *args);

static bool has_engine;
static int runs, compiled, ours;
static int passed_over;                  /* cudnn_target.passed_over of the last graph */
static attention_shape asked;            /* shape of the last graph */
static int misaligned, copied;           /* misaligned pointers so far; copies of log-sums */
static attention_columns_args last_copy; /* the last one before the latest run */
static const void *log_sums;             /* pointer of the last run */

static cudnnStatus_t create_cudnn(cudnnHandle_t *out)
{
    *out = (cudnnHandle_t)&runs;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy_cudnn(cudnnHandle_t handle)
{
    (void)handle;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t queue)
{
    (void)handle;
    (void)queue;
    return CUDNN_STATUS_SUCCESS;
}

const cudnn_library *cudnn_api(void)
{
    static const cudnn_library stand_in = {
        .Create = create_cudnn, .Destroy = destroy_cudnn, .SetStream = set_stream};
    return &stand_in;
}

status cudnn_fail(const char *call, cudnnStatus_t error)
{
    return FAIL(ST_BAD_DEVICE, "%s: %d", call, (int)error);
}

void cudnn_plan_done(cudnn_plan *ready)
{
    (void)ready;
}

enum { TOKENS_MAX = 1 << 16, HEADS_MAX = 64 };
static unsigned char computed[TOKENS_MAX][HEADS_MAX]; /* how often, for a token's query head */
static int zeroed; /* how often the rows after the last segment were set to 0 */
static const attention_bwd_args *counted; /* NULL: what a run computes is not counted */

/* Counts what one execution of the backward computes, by the lists that it is given. */
static void count_run(int64_t count, const int64_t *uids, void *const *pointers)
{
    const int32_t *length = NULL;
    const int64_t *first = NULL;
    const char *dq = NULL;
    for (int64_t i = 0; i < count; i++) {
        length = uids[i] == ATTENTION_LENGTH ? pointers[i] : length;
        first = uids[i] == ATTENTION_FIRST_Q ? pointers[i] : first;
        dq = uids[i] == ATTENTION_DQ ? pointers[i] : dq;
    }
    const int64_t head = (dq - (const char *)counted->dq) / 2 / counted->head_dim;
    for (int64_t segment = 0; segment < asked.segments; segment++) {
        assert_true(length[segment] >= 0 && length[segment] <= asked.longest);
        for (int64_t i = 0; i < length[segment] * asked.heads; i++)
            computed[first[segment] / counted->q_stride + i / asked.heads]
                    [head + i % asked.heads]++;
    }
}

status cudnn_plan_run(const cudnn_plan *ready, cudnnHandle_t handle, int64_t count,
                      const int64_t *uids, void *const *pointers, void *workspace)
{
    (void)ready;
    (void)handle;
    for (int64_t i = 0; i < count; i++) {
        bool host = uids[i] == ATTENTION_SCALE || uids[i] == ATTENTION_MINUS ||
                    uids[i] == ATTENTION_ONE; /* these are numbers, not addresses */
        misaligned += !host && (uintptr_t)pointers[i] % CUDNN_ALIGNMENT != 0;
        if (uids[i] == ATTENTION_LSE)
            log_sums = pointers[i];
    }
    misaligned += (uintptr_t)workspace % CUDNN_ALIGNMENT != 0;
    if (counted)
        count_run(count, uids, pointers);
    runs++;
    return ST_OK;
}

static status compile_plan(const cudnn_target *target, cudnn_plan *out)
{
    compiled++;
    passed_over = target->passed_over;
    *out = (cudnn_plan){.workspace_bytes = 0};
    return has_engine ? ST_OK : FAIL(ST_UNAVAILABLE, "no engine for this graph");
}

status attention_graph_forward(const attention_shape *wanted, const cudnn_target *target,
                               cudnn_plan *out)
{
    asked = *wanted;
    return compile_plan(target, out);
}

status attention_graph_backward(const attention_shape *wanted, const cudnn_target *target,
                                cudnn_plan *out)
{
    asked = *wanted;
    return compile_plan(target, out);
}

/* What the kernels write, on the host. */
status cuda_attention_portable_fwd(stream *queue, const attention_fwd_args *args)
{
    (void)queue;
    (void)args;
    ours++;
    return ST_OK;
}

status cuda_attention_portable_bwd(stream *queue, const attention_bwd_args *args)
{
    (void)queue;
    (void)args;
    ours++;
    return ST_OK;
}

status cuda_attention_pack(stream *queue, const attention_pack_args *pack)
{
    (void)queue;
    if (!counted)
        return ST_OK;
    for (int64_t i = 0; i <= pack->segments; i++) {
        if (i < pack->segments)
            pack->length[i] = i < pack->filled ? pack->cu[i + 1] - pack->cu[i] : 0;
        for (int j = 0; j < PACK_FIRSTS; j++)
            pack->first[j][i] = pack->cu[i < pack->filled ? i : pack->filled] * pack->stride[j];
    }
    if (pack->tail[0]) {
        assert_ptr_equal(pack->tail[0], counted->dq);
        assert_ptr_equal(pack->tail[1], counted->dk);
        assert_ptr_equal(pack->tail[2], counted->dv);
        assert_int_equal(pack->cu[pack->filled], counted->cu[counted->segments]);
        zeroed++;
    }
    return ST_OK;
}

status cuda_attention_columns(stream *queue, const attention_columns_args *args)
{
    (void)queue;
    last_copy = *args;
    copied++;
    return ST_OK;
}

status cuda_scratch(stream *queue, size_t bytes, void **out)
{
    static _Alignas(256) char room[1 << 20];
    (void)queue;
    (void)bytes; /* only the lists at its beginning are written */
    *out = room;
    return ST_OK;
}

typedef struct bench {
    cuda_device cuda;
    cuda_stream own;
} bench;

static status zero_nothing(stream *queue, void *zeroed_array, size_t bytes)
{
    (void)queue;
    (void)zeroed_array;
    (void)bytes;
    return ST_OK;
}

static void open_bench(bench *setup)
{
    static const backend_vtable backend = {.zero = zero_nothing};
    *setup = (bench){.cuda = {.cudnn = true}};
    setup->cuda.options.deterministic = true;
    setup->cuda.base.backend = &backend;
    setup->own.base.dev = &setup->cuda.base;
    counted = NULL;
    runs = compiled = misaligned = copied = ours = passed_over = 0;
    has_engine = true;
}

static void close_bench(bench *setup)
{
    if (setup->cuda.kept[KEPT_ATTENTION].data)
        setup->cuda.kept[KEPT_ATTENTION].done(setup->cuda.kept[KEPT_ATTENTION].data);
}

static _Alignas(16) char array[16];

/* A row of `tokens` in which documents follow each other without gaps; four query heads, two heads
 * of keys and values. */
static attention_bwd_args shape(int64_t tokens, int64_t segments, int64_t width)
{
    return (attention_bwd_args){.tokens = tokens,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = width,
                                .segments = segments,
                                .causal = true,
                                .scale = 1,
                                .q = array,
                                .k = array,
                                .v = array,
                                .o = array,
                                .lse = array,
                                .do_ = array,
                                .q_stride = 4 * width,
                                .k_stride = 2 * width,
                                .v_stride = 2 * width,
                                .o_stride = 4 * width,
                                .dq = array,
                                .dk = array,
                                .dv = array,
                                .work = array};
}

static attention_fwd_args forward_of(const attention_bwd_args *args)
{
    return (attention_fwd_args){.tokens = args->tokens,
                                .heads = args->heads,
                                .kv_heads = args->kv_heads,
                                .head_dim = args->head_dim,
                                .segments = args->segments,
                                .causal = args->causal,
                                .scale = args->scale,
                                .q = args->q,
                                .k = args->k,
                                .v = args->v,
                                .q_stride = args->q_stride,
                                .k_stride = args->k_stride,
                                .v_stride = args->v_stride,
                                .o_stride = args->o_stride,
                                .o = (void *)args->o,
                                .lse = (void *)args->lse};
}

/* Runs forward and backward `times` times. Returns how often cuDNN did the work, and what was
 * logged. */
static int done_by_cudnn(bench *setup, const attention_bwd_args *args, int times, char *log,
                         size_t size)
{
    attention_fwd_args forward = forward_of(args);
    int kept = dup(STDERR_FILENO), both[2], count = 0;
    assert_int_equal(pipe(both), 0);
    assert_true(kept >= 0 && dup2(both[1], STDERR_FILENO) >= 0);
    close(both[1]);
    for (int i = 0; i < times; i++) {
        bool done = true;
        assert_ok(attention_cudnn_fwd(&setup->own.base, &forward, &done));
        count += done;
        assert_ok(attention_cudnn_bwd(&setup->own.base, args, &done));
        count += done;
    }
    dup2(kept, STDERR_FILENO);
    close(kept);
    ssize_t got = read(both[0], log, size - 1);
    close(both[0]);
    log[got > 0 ? got : 0] = 0;
    return count;
}

static int lines_with(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        count++;
    return count;
}

static void test_attention__nothing_is_logged_where_cudnn_works(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    attention_bwd_args args = shape(256, 4, 64);
    assert_int_equal(done_by_cudnn(&setup, &args, 2, log, sizeof log), 4);
    assert_int_equal(runs, 4);
    assert_int_equal(compiled, 2);
    assert_string_equal(log, "");
    close_bench(&setup);
}

static void test_attention__no_engine_is_logged_once(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    has_engine = false;
    attention_bwd_args args = shape(256, 4, 64);
    assert_int_equal(done_by_cudnn(&setup, &args, 3, log, sizeof log), 0);
    assert_int_equal(compiled, 2);
    assert_int_equal(lines_with(log, "warn"), 2);
    assert_int_equal(lines_with(log, "direction=forward"), 1);
    assert_int_equal(lines_with(log, "direction=backward"), 1);
    assert_int_equal(lines_with(log, "no engine for this graph"), 2);
    close_bench(&setup);
}

static void test_attention__a_choice_against_cudnn_is_logged_once_per_reason(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    attention_bwd_args wide = shape(256, 4, 136), sparse = shape(1 << 16, 1 << 14, 64);
    assert_int_equal(done_by_cudnn(&setup, &wide, 2, log, sizeof log), 0);
    assert_int_equal(lines_with(log, "info"), 2);
    assert_int_equal(lines_with(log, "a multiple of 8 and at most 128"), 2);
    assert_int_equal(lines_with(log, "width=136"), 2);
    assert_int_equal(setup.cuda.base.choices.also_ours, 0);
    assert_int_equal(done_by_cudnn(&setup, &sparse, 2, log, sizeof log), 0);
    assert_int_equal(lines_with(log, "empty blocks"), 2);
    assert_int_equal(setup.cuda.base.choices.also_ours,
                     1 << CHOICE_TEXT_FORWARD | 1 << CHOICE_TEXT_BACKWARD);
    assert_int_equal(compiled, 0);
    close_bench(&setup);
}

/* While choices are strict, a shape that cuDNN does not take is an error, so that the trial before
 * step 1 moves all ranks and a strict run ends. Where our own kernels are the faster way, their use
 * is no fallback. */
static void test_attention__a_refused_shape_is_an_error_if_choices_are_strict(void **state)
{
    (void)state;
    const struct {
        attention_bwd_args args;
        const char *cause; /* NULL: our own kernels may take it */
        bool forward;      /* it is refused in the forward pass too */
    } cases[] = {{shape(256, 4, 136), "a multiple of 8 and at most 128", true},
                 {shape(256, 4, 72), "only for head widths that are a multiple of 16", false},
                 {shape(1 << 18, 1, 64), "needs too much memory", false},
                 {shape(1 << 16, 1 << 14, 64), NULL, false},
                 {shape(256, 4, 64), NULL, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench setup;
        bool done = false;
        open_bench(&setup);
        setup.cuda.base.choices.strict = true;
        attention_fwd_args forward = forward_of(&cases[i].args);
        assert_int_equal(attention_cudnn_fwd(&setup.own.base, &forward, &done),
                         cases[i].forward ? ST_UNAVAILABLE : ST_OK);
        assert_int_equal(attention_cudnn_bwd(&setup.own.base, &cases[i].args, &done),
                         cases[i].cause ? ST_UNAVAILABLE : ST_OK);
        if (cases[i].cause)
            assert_non_null(strstr(status_text(), cases[i].cause));
        status_clear();
        close_bench(&setup);
    }
}

/* The description of the device says already that there is no cuDNN, so no reason is logged. */
static void test_attention__without_cudnn_nothing_is_logged(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    setup.cuda.cudnn = false;
    attention_bwd_args args = shape(256, 4, 64);
    assert_int_equal(done_by_cudnn(&setup, &args, 1, log, sizeof log), 0);
    assert_string_equal(log, "");
    close_bench(&setup);
}

/* A deterministic backward that works on groups of heads; a group can begin at any head. */
typedef struct grouping {
    int64_t heads, kv_heads, width, segments, longest;
    int runs, copied;
} grouping;

static attention_bwd_args shape_of(const grouping *groups)
{
    attention_bwd_args args = shape(1 << 11, groups->segments, groups->width);
    args.heads = groups->heads;
    args.kv_heads = groups->kv_heads;
    args.longest = groups->longest;
    args.q_stride = args.o_stride = groups->heads * groups->width;
    args.k_stride = args.v_stride = groups->kv_heads * groups->width;
    return args;
}

static void test_attention__groups_are_aligned_as_declared(void **state)
{
    (void)state;
    static const grouping cases[] = {
        {16, 16, 72, 1, 1 << 13, 1, 0},   /* all heads at once */
        {16, 16, 72, 1, 1 << 14, 2, 0},   /* eight heads: 32 bytes apart */
        {16, 16, 72, 4, 1 << 14, 8, 8},   /* two heads: 8 bytes */
        {16, 16, 72, 7, 1 << 14, 16, 16}, /* one head: 4 bytes */
        {16, 16, 64, 7, 1 << 14, 16, 16}, {32, 4, 128, 1, 1 << 14, 4, 0},
        {4, 2, 64, 4, 1 << 14, 2, 2}, /* rows of a copy are as long as whole rows */
        {6, 3, 128, 4, 1 << 14, 3, 3},    {12, 3, 128, 2, 1 << 14, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench setup;
        bool done;
        const grouping *groups = &cases[i];
        open_bench(&setup);
        attention_bwd_args args = shape_of(groups);
        assert_ok(attention_cudnn_bwd(&setup.own.base, &args, &done));
        assert_true(done);
        assert_int_equal(runs, groups->runs);
        assert_int_equal(misaligned, 0);
        assert_int_equal(copied, groups->copied);
        /* The last group's heads were copied to where the graph reads them. */
        if (copied) {
            assert_int_equal(asked.heads, groups->heads / groups->runs);
            assert_ptr_equal(last_copy.to, log_sums);
            assert_ptr_equal(last_copy.from, (const float *)args.lse + groups->heads - asked.heads);
            assert_int_equal(last_copy.width, asked.heads);
            assert_int_equal(last_copy.rows, args.tokens);
            assert_int_equal(last_copy.from_stride, groups->heads);
            assert_int_equal(last_copy.to_stride, asked.lse_stride);
            assert_true(asked.lse_stride >= asked.heads && asked.lse_stride % 4 == 0);
        }
        close_bench(&setup);
    }
}

/* Where even one key-value head over all segments takes too much memory, the segments are cut into
 * runs. Every head of every token is computed exactly once, whatever the segments hold. */
static void test_attention__runs_compute_every_segment_once(void **state)
{
    (void)state;
    static const struct {
        grouping of;
        int64_t length; /* tokens of a segment; the last one is shorter */
    } cases[] = {
        {{32, 4, 128, 4, 12288, 4 * 4, 0}, 12288}, /* a run for each row */
        {{12, 2, 128, 5, 12288, 2 * 3, 2}, 12288}, /* runs of two, the last one filled up */
        {{8, 1, 128, 5, 12288, 5, 0}, 9000},
        {{10, 10, 72, 30, 12288, 10 * 3, 10}, 2000}, /* copied log-sums */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench setup;
        bool done;
        const grouping *groups = &cases[i].of;
        int32_t cu[33] = {0};
        attention_bwd_args args = shape_of(groups);
        open_bench(&setup);
        for (int64_t k = 1; k <= groups->segments; k++)
            cu[k] = cu[k - 1] + (int32_t)cases[i].length - (k == groups->segments ? 100 : 0);
        args.cu = cu;
        args.tokens = cu[groups->segments] + 7;
        assert_true(args.tokens <= TOKENS_MAX);
        memset(computed, 0, sizeof computed);
        zeroed = 0;
        counted = &args;
        assert_ok(attention_cudnn_bwd(&setup.own.base, &args, &done));
        counted = NULL;
        assert_true(done);
        assert_int_equal(runs, groups->runs);
        assert_int_equal(copied, groups->copied);
        assert_int_equal(compiled, 1);
        assert_int_equal(misaligned, 0);
        assert_int_equal(zeroed, 1);
        for (int64_t token = 0; token < args.tokens; token++)
            for (int64_t head = 0; head < groups->heads; head++)
                assert_int_equal(computed[token][head], token < cu[groups->segments]);
        close_bench(&setup);
    }
}

/* Where a row may hold many short documents or a long one, runs could launch thousands of kernels
 * for next to nothing; our own kernels do that. */
static void test_attention__runs_that_may_not_pay_are_ours(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    attention_bwd_args args = shape_of(&(grouping){32, 4, 128, 100, 12288, 0, 0});
    args.tokens = 12288;
    assert_int_equal(done_by_cudnn(&setup, &args, 1, log, sizeof log), 1);
    assert_int_equal(lines_with(log, "direction=backward"), 1);
    assert_int_equal(lines_with(log, "too much memory"), 1);
    close_bench(&setup);
}

/* A call may ask for any order on a deterministic device;
 * it takes little memory and is one part. */
static void test_attention__any_order_is_asked_for_by_the_call(void **state)
{
    (void)state;
    bench setup;
    bool done;
    open_bench(&setup);
    attention_bwd_args args = shape_of(&(grouping){32, 4, 128, 4, 12288, 0, 0});
    args.tokens = 4 * 12288;
    assert_ok(attention_cudnn_bwd(&setup.own.base, &args, &done));
    assert_true(done && asked.deterministic);
    assert_int_equal(runs, 16);
    args.any_order = true;
    assert_ok(attention_cudnn_bwd(&setup.own.base, &args, &done));
    assert_true(done && !asked.deterministic);
    assert_int_equal(runs, 17);
    close_bench(&setup);
}

/* Log-sums and row sums that are not aligned to 16 bytes are not handed to cuDNN. */
static void test_attention__unaligned_sums_do_not_go_to_cudnn(void **state)
{
    (void)state;
    bench setup;
    char log[4096];
    open_bench(&setup);
    attention_bwd_args args = shape(256, 4, 64);
    args.work = array + 4;
    assert_int_equal(done_by_cudnn(&setup, &args, 1, log, sizeof log), 1);
    assert_int_equal(lines_with(log, "aligned to 16 bytes"), 1);
    args.lse = array + 4;
    assert_int_equal(done_by_cudnn(&setup, &args, 1, log, sizeof log), 0);
    assert_int_equal(lines_with(log, "direction=forward"), 1);
    close_bench(&setup);
}

/* Where choices are strict, a shape without an engine is the caller's to know. */
static void test_attention__no_engine_fails_where_choices_are_strict(void **state)
{
    (void)state;
    bench setup;
    bool done;
    open_bench(&setup);
    has_engine = false;
    setup.cuda.base.choices.strict = true;
    attention_bwd_args args = shape(256, 4, 64);
    assert_fails(ST_UNAVAILABLE, attention_cudnn_bwd(&setup.own.base, &args, &done),
                 "no engine for this graph");
    setup.cuda.base.choices.strict = false;
    has_engine = true; /* the failure was not kept as the shape's plan */
    assert_ok(attention_cudnn_bwd(&setup.own.base, &args, &done));
    assert_true(done);
    close_bench(&setup);
}

/* Each way of attention, by direction: cuDNN's first engine, another plan with the next one, and
 * our own kernels. */
static void test_attention__follows_the_choice(void **state)
{
    (void)state;
    bench setup;
    open_bench(&setup);
    attention_bwd_args args = shape(256, 4, 64);
    attention_fwd_args forward = forward_of(&args);
    uint8_t *way = setup.cuda.base.choices.way;
    assert_ok(cuda_attention_bwd(&setup.own.base, &args));
    assert_int_equal(passed_over, 0);
    way[CHOICE_TEXT_BACKWARD] = ATTENTION_BY_NEXT_ENGINE;
    assert_ok(cuda_attention_bwd(&setup.own.base, &args));
    assert_int_equal(compiled, 2);
    assert_int_equal(passed_over, 1);
    assert_ok(cuda_attention_fwd(&setup.own.base, &forward));
    assert_int_equal(passed_over, 0);
    assert_int_equal(runs, 3);
    assert_int_equal(ours, 0);
    way[CHOICE_TEXT_BACKWARD] = ATTENTION_BY_OURS;
    assert_ok(cuda_attention_bwd(&setup.own.base, &args));
    assert_int_equal(runs, 3);
    assert_int_equal(ours, 1);
    args.causal = forward.causal = false; /* vision has choices of its own */
    way[CHOICE_VISION_FORWARD] = ATTENTION_BY_OURS;
    assert_ok(cuda_attention_bwd(&setup.own.base, &args));
    assert_ok(cuda_attention_fwd(&setup.own.base, &forward));
    assert_int_equal(runs, 4);
    assert_int_equal(ours, 2);
    close_bench(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention__nothing_is_logged_where_cudnn_works),
        cmocka_unit_test(test_attention__no_engine_is_logged_once),
        cmocka_unit_test(test_attention__a_choice_against_cudnn_is_logged_once_per_reason),
        cmocka_unit_test(test_attention__a_refused_shape_is_an_error_if_choices_are_strict),
        cmocka_unit_test(test_attention__without_cudnn_nothing_is_logged),
        cmocka_unit_test(test_attention__groups_are_aligned_as_declared),
        cmocka_unit_test(test_attention__runs_compute_every_segment_once),
        cmocka_unit_test(test_attention__runs_that_may_not_pay_are_ours),
        cmocka_unit_test(test_attention__any_order_is_asked_for_by_the_call),
        cmocka_unit_test(test_attention__unaligned_sums_do_not_go_to_cudnn),
        cmocka_unit_test(test_attention__no_engine_fails_where_choices_are_strict),
        cmocka_unit_test(test_attention__follows_the_choice),
    };
    log_init("trainer", LOG_INFO, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
