/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tar.c: any bytes as a WebDataset tar. It must be refused with a message, or every sample
 * must have a cause or its turns, and every image must lie inside the file. */
#include <string.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

static char path[256];

static void remove_file(void)
{
    remove(path);
}

static void write_file(const uint8_t *data, size_t size)
{
    if (!path[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(path, sizeof path, "%.200s/fuzz-tar-%d.tar", tmp ? tmp : "/tmp", (int)getpid());
        atexit(remove_file);
    }
    FILE *file = fopen(path, "wb");
    FUZZ_HOLDS(file && fwrite(data, 1, size, file) == size);
    fclose(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf options = conf_defaults();
    dataset *set;
    arena memory;
    write_file(data, size);
    options.data_path = path;
    options.data_format = DATA_WEBDATASET;
    options.data_prompt = size % 2 ? "?" : "";
    status_clear();
    if (dataset_open(&options, &set) != ST_OK) {
        FUZZ_HOLDS(status_text()[0]);
        return 0;
    }
    arena_init(&memory, 0);
    for (int64_t i = 0; i < set->adapter->samples(set); i++) {
        sample smp;
        FUZZ_HOLDS(set->adapter->sample(set, i, &memory, &smp) == ST_OK);
        FUZZ_HOLDS(smp.name && smp.name[0] && (smp.cause || smp.n_turns > 0));
        for (int32_t k = 0; k < smp.n_images; k++)
            FUZZ_HOLDS(smp.images[k] >= 0 && smp.images[k] < set->adapter->images(set));
    }
    for (int64_t j = 0; j < set->adapter->images(set); j++) {
        image_place place;
        dataset_image_place(set, j, &place);
        FUZZ_HOLDS(place.offset >= 512 && place.bytes >= 0);
        FUZZ_HOLDS(place.offset + place.bytes <= (int64_t)size);
        FUZZ_HOLDS(set->adapter->image_path(set, j)[0]);
    }
    dataset_close(&set);
    arena_done(&memory);
    return 0;
}
