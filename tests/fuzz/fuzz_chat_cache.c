/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_chat_cache.c: any bytes as the cache of a file of conversations, in which one start keeps
 * the places of records and the images for the next (chat_cache.c); the bytes follow a valid key
 * and checksum. They must be refused with a message, or every record must be readable or give an
 * error with a message. */
#include <string.h>
#include <unistd.h>

#include "prepd/dataset/adapters/conversations.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { RECORDS = 20, MOST = 64 /* the most records read of one input */ };

static char path[256];

static void remove_file(void)
{
    remove(path);
}

static void make_file(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.200s/fuzz-chats-%d.jsonl", tmp ? tmp : "/tmp", (int)getpid());
    atexit(remove_file);
    FILE *file = fopen(path, "w");
    FUZZ_HOLDS(file);
    for (int k = 0; k < RECORDS; k++)
        fprintf(file,
                "{\"image\":\"p/%02d.jpg\",\"conversations\":[{\"from\":\"human\",\"value\":"
                "\"<image>\"},{\"from\":\"gpt\",\"value\":\"b\"}]}\n",
                k);
    FUZZ_HOLDS(fclose(file) == 0);
}

static void read_records(const conversations *talks)
{
    arena memory;
    arena_init(&memory, 0);
    for (int64_t i = 0; i < talks->count && i < MOST; i++) {
        sample smp;
        image_place place;
        status_clear();
        if (dataset_conversations.sample(&talks->base, i, &memory, &smp) != ST_OK) {
            FUZZ_HOLDS(status_text()[0]);
            continue;
        }
        FUZZ_HOLDS(smp.name[0] && (smp.cause || smp.n_turns > 0));
        for (int32_t k = 0; k < smp.n_images; k++) {
            dataset_image_place(&talks->base, smp.images[k], &place);
            FUZZ_HOLDS(place.path[0]);
        }
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
    conversations talks = {.base.adapter = &dataset_conversations, .random = true};
    options.data_format = DATA_CONVERSATIONS;
    options.data_path = path;
    talks.clips.max_frames = options.video_input_frames;
    talks.root = strdup("/nowhere");
    FUZZ_HOLDS(talks.root && chat_rules_of(&options, &talks.rules) == ST_OK &&
               records_open(&options, &talks.files) == ST_OK);
    status_clear();
    if (chat_cache_take(&talks, &tensors, "fuzz") == ST_OK)
        read_records(&talks);
    else
        FUZZ_HOLDS(status_text()[0]);
    records_close(&talks.files);
    name_list_done(&talks.images);
    clip_table_done(&talks.clips);
    text_pool_done(&talks.causes);
    free(talks.contents);
    free(talks.root);
    free(talks.all);
    free(talks.shown);
    st_close(&tensors);
    return 0;
}
