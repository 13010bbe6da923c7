/* SPDX-License-Identifier: Apache-2.0 */
/* bf16_cuda.c: the device of test_model_cuda: a GPU, through libtessera_cuda.so as the trainer
 * loads it. */
#include "common/conf/conf.h"
#include "tests/simt/bf16_device.h"
#include "trainer/ops/open.h"

const bool bf16_device_lacks_products = false;
const char *const bf16_device_flavours[] = {"debug", "tile", NULL};

status bf16_device_open(device **out)
{
    return device_open(BACKEND_CUDA, &(device_options){.deterministic = true}, out);
}
