/* Any bytes as a file of conversations, plain, gzip or zstd: refused with a message, or every
 * record has a cause or its turns, and reads the same again. */
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
        snprintf(path, sizeof path, "%.200s/fuzz-records-%d.json", tmp ? tmp : "/tmp",
                 (int)getpid());
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    FUZZ_HOLDS(f && fwrite(data, 1, size, f) == size);
    fclose(f);
}

static void check_sample(const dataset *d, int64_t i, arena *a)
{
    sample s;
    FUZZ_HOLDS(d->v->sample(d, i, a, &s) == ST_OK);
    FUZZ_HOLDS(s.name && s.name[0] && (s.cause || s.n_turns > 0));
    for (int32_t t = 0; !s.cause && t < s.n_turns; t++)
        for (int32_t k = 0; k < s.turns[t].n_parts; k++) {
            const part *p = &s.turns[t].parts[k];
            FUZZ_HOLDS(p->text ? p->text[p->text_bytes] == 0 : p->image < s.n_images);
            FUZZ_HOLDS(!s.turns[t].weights || s.turns[t].weights[k] >= 0);
        }
    for (int32_t k = 0; k < s.n_images; k++)
        FUZZ_HOLDS(s.images[k] >= 0 && s.images[k] < d->v->images(d));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf c = conf_defaults();
    dataset *d;
    arena a;
    write_file(data, size);
    c.data_path = path;
    c.data_format = DATA_CONVERSATIONS;
    c.data_stage_weights = "0.5,0,2";
    c.data_loss_on = size % 2 ? LOSS_ON_LAST : LOSS_ON_ALL;
    status_clear();
    if (dataset_open(&c, &d) != ST_OK) {
        FUZZ_HOLDS(status_text()[0]);
        return 0;
    }
    arena_init(&a, 0);
    for (int64_t i = d->v->samples(d) - 1; i >= 0; i--) /* backwards: from restart points */
        check_sample(d, i, &a);
    dataset_close(&d);
    arena_done(&a);
    return 0;
}
