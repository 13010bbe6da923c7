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
    FILE *f = fopen(path, "wb");
    FUZZ_HOLDS(f && fwrite(data, 1, size, f) == size);
    fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf c = conf_defaults();
    dataset *d;
    arena a;
    write_file(data, size);
    c.data_path = path;
    c.data_format = DATA_WEBDATASET;
    c.data_prompt = size % 2 ? "?" : "";
    status_clear();
    if (dataset_open(&c, &d) != ST_OK) {
        FUZZ_HOLDS(status_text()[0]);
        return 0;
    }
    arena_init(&a, 0);
    for (int64_t i = 0; i < d->adapter->samples(d); i++) {
        sample s;
        FUZZ_HOLDS(d->adapter->sample(d, i, &a, &s) == ST_OK);
        FUZZ_HOLDS(s.name && s.name[0] && (s.cause || s.n_turns > 0));
        for (int32_t k = 0; k < s.n_images; k++)
            FUZZ_HOLDS(s.images[k] >= 0 && s.images[k] < d->adapter->images(d));
    }
    for (int64_t j = 0; j < d->adapter->images(d); j++) {
        image_place place;
        dataset_image_place(d, j, &place);
        FUZZ_HOLDS(place.offset >= 512 && place.bytes >= 0);
        FUZZ_HOLDS(place.offset + place.bytes <= (int64_t)size);
        FUZZ_HOLDS(d->adapter->image_path(d, j)[0]);
    }
    dataset_close(&d);
    arena_done(&a);
    return 0;
}
