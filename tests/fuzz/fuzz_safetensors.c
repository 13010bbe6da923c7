/* fuzz_safetensors.c: any bytes as a safetensors block. It must be refused, or give tensors that
 * cover the data exactly, every byte of which can be read. */
#include "common/model_folder/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    st_file f;
    if (st_parse(span_of(data, size), "fuzz", &f) != ST_OK)
        return 0;
    volatile uint8_t sum = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < f.n_tensors; i++) {
        const st_tensor *t = &f.tensors[i];
        FUZZ_HOLDS((uint64_t)st_count(t) * st_dtype_size(t->dtype) == t->data.size);
        FUZZ_HOLDS(st_find(&f, t->name) == t);
        for (size_t k = 0; k < t->data.size; k++)
            sum = (uint8_t)(sum + t->data.data[k]);
        bytes += t->data.size;
    }
    FUZZ_HOLDS(8 + load_u64(data) + bytes == size);
    for (size_t i = 0; i < f.n_meta; i++)
        FUZZ_HOLDS(st_meta_find(&f, f.meta[i].key) == f.meta[i].value);
    st_close(&f);
    return 0;
}
