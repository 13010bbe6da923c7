/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: any bytes as a safetensors block. It must be refused, or give tensors that
 * cover the data exactly, every byte of which can be read. */
#include "common/model_folder/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file tensors;
    if (st_parse(span_of(data, size), "fuzz", &tensors) != ST_OK)
        return 0;
    volatile uint8_t sum = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < tensors.n_tensors; i++) {
        const st_tensor *tensor = &tensors.tensors[i];
        FUZZ_HOLDS((uint64_t)st_count(tensor) * st_dtype_size(tensor->dtype) == tensor->data.size);
        FUZZ_HOLDS(st_find(&tensors, tensor->name) == tensor);
        for (size_t k = 0; k < tensor->data.size; k++)
            sum = (uint8_t)(sum + tensor->data.data[k]);
        bytes += tensor->data.size;
    }
    FUZZ_HOLDS(8 + load_u64(data) + bytes == size);
    for (size_t i = 0; i < tensors.n_meta; i++)
        FUZZ_HOLDS(st_meta_find(&tensors, tensors.meta[i].key) == tensors.meta[i].value);
    st_close(&tensors);
    return 0;
}
