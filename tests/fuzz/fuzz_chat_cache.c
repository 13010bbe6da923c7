/* fuzz_chat_cache.c: any bytes as the cache of a file of conversations, in which one start keeps
 * the places of records and the images for the next (chat_cache.c); the bytes follow a valid key
 * and checksum. They must be refused with a message, or every record must be readable or give an
 * error with a message. */
#include <string.h>
#include <unistd.h>

#include "prepd/dataset/conversations.h"
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
    FILE *f = fopen(path, "w");
    FUZZ_HOLDS(f);
    for (int k = 0; k < RECORDS; k++)
        fprintf(f,
                "{\"image\":\"p/%02d.jpg\",\"conversations\":[{\"from\":\"human\",\"value\":"
                "\"<image>\"},{\"from\":\"gpt\",\"value\":\"b\"}]}\n",
                k);
    FUZZ_HOLDS(fclose(f) == 0);
}

static void read_records(const conversations *d)
{
    arena a;
    arena_init(&a, 0);
    for (int64_t i = 0; i < d->count && i < MOST; i++) {
        sample s;
        image_place place;
        status_clear();
        if (dataset_conversations.sample(&d->base, i, &a, &s) != ST_OK) {
            FUZZ_HOLDS(status_text()[0]);
            continue;
        }
        FUZZ_HOLDS(s.name[0] && (s.cause || s.n_turns > 0));
        for (int32_t k = 0; k < s.n_images; k++) {
            dataset_image_place(&d->base, s.images[k], &place);
            FUZZ_HOLDS(place.path[0]);
        }
    }
    arena_done(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf c = conf_defaults();
    st_file f;
    if (!path[0])
        make_file();
    if (st_parse(span_of(data, size), "fuzz", &f) != ST_OK)
        return 0;
    conversations d = {.base.adapter = &dataset_conversations, .random = true};
    c.data_format = DATA_CONVERSATIONS;
    c.data_path = path;
    d.clips.max_frames = c.video_input_frames;
    d.root = strdup("/nowhere");
    FUZZ_HOLDS(d.root && chat_rules_of(&c, &d.rules) == ST_OK &&
               records_open(&c, &d.files) == ST_OK);
    status_clear();
    if (chat_cache_take(&d, &f, "fuzz") == ST_OK)
        read_records(&d);
    else
        FUZZ_HOLDS(status_text()[0]);
    records_close(&d.files);
    name_list_done(&d.images);
    clip_table_done(&d.clips);
    text_pool_done(&d.causes);
    free(d.contents);
    free(d.root);
    free(d.all);
    free(d.shown);
    st_close(&f);
    return 0;
}
