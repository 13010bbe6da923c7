/* SPDX-License-Identifier: Apache-2.0 */
/* adamw_steps.c: takes steps of AdamW with moments in 8 bits on the CPU, for comparisons with other
 * implementations (adamw_peers.py).
 *
 *   adamw_steps STEPS COUNT < GRADIENTS > VALUES
 *
 * GRADIENTS and VALUES are [STEPS, COUNT] float32: the gradient of each step, and the values after
 * it, which begin at 0. The rate is 1e-3, without decay. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/conf/conf.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"

enum { ARRAYS = 6 };

/* Reads, updates and writes step by step. array: values, gradients, the codes of both moments and
 * their scales, all zero at first. */
static status take_steps(stream *queue, int64_t steps, int64_t count, void *const *array)
{
    optim_tensor tensor = {.n = count,
                           .lr_factor = 1,
                           .p = array[0],
                           .g = array[1],
                           .m = array[2],
                           .v = array[3],
                           .m_scale = array[4],
                           .v_scale = array[5]};
    const optim_list list = {.tensor = &tensor,
                             .n_tensors = 1,
                             .n_chunks = (count + OPTIM_CHUNK - 1) / OPTIM_CHUNK,
                             .coded = true};
    for (int64_t step = 1; step <= steps; step++) {
        const step_scalars scalars = {.lr = 1e-3,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .bias1 = 1 - pow(0.9, (double)step),
                                      .bias2 = 1 - pow(0.95, (double)step),
                                      .grad_scale = 1,
                                      .number = (double)step};
        if (fread(array[1], sizeof(float), (size_t)count, stdin) != (size_t)count)
            return FAIL(ST_NO_INPUT, "the gradient of step %d is cut short", (int)step);
        TRY(op_adamw(queue, &(adamw_args){.list = list, .step = &scalars}));
        TRY(queue->dev->backend->wait(queue));
        if (fwrite(array[0], sizeof(float), (size_t)count, stdout) != (size_t)count)
            return FAIL(ST_IO, "the values of step %d were not written", (int)step);
    }
    return ST_OK;
}

static status run(int64_t steps, int64_t count)
{
    const size_t blocks = (size_t)((count + STATE_BLOCK - 1) / STATE_BLOCK), each = (size_t)count;
    const size_t bytes[ARRAYS] = {4 * each, 4 * each, each, each, 4 * blocks, 4 * blocks};
    void *array[ARRAYS];
    device *dev;
    stream *queue;
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    TRY(dev->backend->stream_new(dev, &queue));
    for (int i = 0; i < ARRAYS; i++) {
        TRY(dev->backend->alloc(dev, bytes[i], &array[i]));
        TRY(dev->backend->zero(queue, array[i], bytes[i]));
    }
    TRY(take_steps(queue, steps, count, array));
    for (int i = 0; i < ARRAYS; i++)
        dev->backend->release(dev, array[i]);
    dev->backend->stream_free(&queue);
    device_close(&dev);
    return ST_OK;
}

int main(int argc, char **argv)
{
    const int64_t steps = argc == 3 ? atoll(argv[1]) : 0, count = argc == 3 ? atoll(argv[2]) : 0;
    if (steps <= 0 || count <= 0) {
        fputs("usage: adamw_steps STEPS COUNT < GRADIENTS > VALUES\n", stderr);
        return 64;
    }
    if (run(steps, count) == ST_OK)
        return 0;
    fprintf(stderr, "adamw_steps: %s\n", status_text());
    return 1;
}
