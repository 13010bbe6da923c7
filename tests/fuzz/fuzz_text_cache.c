/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_text_cache.c: any bytes as the cache of a small gzip file of texts, in which one start keeps
 * the places of documents and the restart points for the next (text_cache.c); the bytes
 * follow a valid key and checksum. They must be refused with a message, or every document must be
 * readable or give an error with a message. */
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "prepd/dataset/adapters/plain_text.h"
#include "prepd/dataset/unpack.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { MOST = 64 }; /* the most documents read of one input */

static char path[256];

static void remove_file(void)
{
    remove(path);
}

/* Writes a file of two gzip members, so that it has a place where unpacking can restart. */
static void make_file(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.200s/fuzz-text-%d.jsonl.gz", tmp ? tmp : "/tmp", (int)getpid());
    atexit(remove_file);
    for (int member = 0; member < 2; member++) {
        gzFile file = gzopen(path, member ? "ab9" : "wb9");
        FUZZ_HOLDS(file);
        for (int k = 0; k < 40; k++)
            gzprintf(file, "{\"text\": \"document %d of member %d\"}\n", k, member);
        FUZZ_HOLDS(gzclose(file) == Z_OK);
    }
}

static void read_documents(const texts *set)
{
    arena memory;
    arena_init(&memory, 0);
    for (int64_t i = 0; i < set->count && i < MOST; i++) {
        sample smp;
        status_clear();
        if (dataset_text.sample(&set->base, i, &memory, &smp) == ST_OK)
            FUZZ_HOLDS(smp.name[0] && (smp.cause || smp.n_turns == 1));
        else
            FUZZ_HOLDS(status_text()[0]);
    }
    arena_done(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf options = conf_defaults();
    st_file tensors;
    if (!path[0])
        make_file();
    if (st_parse(span_of(data, size), "fuzz", &tensors) != ST_OK)
        return 0;
    texts set = {.base.adapter = &dataset_text};
    options.data_format = DATA_TEXT;
    options.data_path = path;
    FUZZ_HOLDS(records_open(&options, &set.files) == ST_OK);
    status_clear();
    if (text_cache_take(&set, &tensors, "fuzz") == ST_OK)
        read_documents(&set);
    else
        FUZZ_HOLDS(status_text()[0]);
    records_close(&set.files);
    free(set.all);
    text_pool_done(&set.causes);
    st_close(&tensors);
    return 0;
}
