/* SPDX-License-Identifier: Apache-2.0 */
/* bf16_simt.c: the device of test_model_bf16: the harness.
 * It lacks what a GPU leaves to a library. */
#include "tests/simt/bf16_device.h"
#include "tests/simt/device.h"

const bool bf16_device_lacks_products = true;
const char *const bf16_device_flavours[] = {"debug", NULL};

status bf16_device_open(device **out)
{
    return backend_simt()->open(&(device_options){0}, out);
}
