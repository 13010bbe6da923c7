/* SPDX-License-Identifier: Apache-2.0 */
/* simt_for_cuda.c: a program that links this file with --wrap=device_open gets the harness when it
 * asks for CUDA: bf16, and the CUDA kernels on the host. What a GPU leaves to a library is the
 * CPU's (product_bf16.h). The program opens one device, until it ends. */
#include "common/conf/conf.h"
#include "tests/simt/device.h"
#include "tests/simt/product_bf16.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"

status __real_device_open(int kind, const device_options *options, device **out);
status __wrap_device_open(int kind, const device_options *options, device **out);

status __wrap_device_open(int kind, const device_options *options, device **out)
{
    static ops_table kernels;
    device *host;
    stream *products;
    if (kind != BACKEND_CUDA)
        return __real_device_open(kind, options, out);
    TRY(__real_device_open(BACKEND_CPU, &(device_options){0}, &host));
    TRY(host->backend->stream_new(host, &products));
    product_bf16_by(products);
    TRY(backend_simt()->open(options, out));
    kernels = *(*out)->ops;
    kernels.gemm = product_bf16;
    (*out)->ops = &kernels;
    return ST_OK;
}
