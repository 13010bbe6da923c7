/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_records.c: any bytes as a file of conversations, plain or compressed with gzip or zstd,
 * beside a folder of frames named "f". If the input begins with a 't', which no such file does, the
 * rest is a file of records of plain text; after a 'p' it is a .txt file, after a 'd' each of two
 * .txt files in a folder. The file must be refused with a message, or every record must have a
 * cause or its turns, and read the same again. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

static char folder[256];

static void join_file(const char *name, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", folder, name);
}

static void write_file(const char *name, const void *data, size_t size)
{
    char path[512];
    join_file(name, path, sizeof path);
    FILE *file = fopen(path, "wb");
    FUZZ_HOLDS(file && fwrite(data, 1, size, file) == size);
    fclose(file);
}

static void remove_files(void)
{
    static const char *const names[] = {"r.json",  "r.txt",   "d/1.txt", "d/2.txt", "d",
                                        "f/1.png", "f/2.png", "f",       ""};
    char path[512];
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        join_file(names[k], path, sizeof path);
        remove(path);
    }
}

static void make_folder(void)
{
    char path[512];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/fuzz-records-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_HOLDS(mkdtemp(folder));
    join_file("f", path, sizeof path);
    FUZZ_HOLDS(mkdir(path, 0777) == 0);
    join_file("d", path, sizeof path);
    FUZZ_HOLDS(mkdir(path, 0777) == 0);
    write_file("f/1.png", "", 0);
    write_file("f/2.png", "", 0);
    atexit(remove_files);
}

static void check_sample(const dataset *set, int64_t index, arena *memory)
{
    sample smp;
    FUZZ_HOLDS(set->adapter->sample(set, index, memory, &smp) == ST_OK);
    FUZZ_HOLDS(smp.name && smp.name[0] && (smp.cause || smp.n_turns > 0));
    FUZZ_HOLDS(!smp.plain || smp.cause || smp.turns[0].parts[0].text_bytes > 0);
    for (int32_t place = 0; !smp.cause && place < smp.n_turns; place++)
        for (int32_t k = 0; k < smp.turns[place].n_parts; k++) {
            const part *piece = &smp.turns[place].parts[k];
            FUZZ_HOLDS(piece->text ? piece->text[piece->text_bytes] == 0
                                   : piece->image < smp.n_images);
            FUZZ_HOLDS(!smp.turns[place].weights || smp.turns[place].weights[k] >= 0);
        }
    for (int32_t k = 0; k < smp.n_images; k++)
        FUZZ_HOLDS(smp.images[k] >= 0 && smp.images[k] < set->adapter->images(set));
}

/* A document of a .txt file has neither ends of blank lines nor line ends of Windows; one of
 * several in a file has no blank line inside. */
static void check_document(const dataset *set, int64_t index, bool alone, arena *memory)
{
    sample smp;
    FUZZ_HOLDS(set->adapter->sample(set, index, memory, &smp) == ST_OK);
    if (smp.cause)
        return;
    const char *text = smp.turns[0].parts[0].text;
    const size_t length = strlen(text);
    FUZZ_HOLDS(length == (size_t)smp.turns[0].parts[0].text_bytes && text[0] != '\n' &&
               text[length - 1] != '\n');
    FUZZ_HOLDS(!strstr(text, "\r\n") && (alone || !strstr(text, "\n\n")));
}

static void check_image(const dataset *set, int64_t number)
{
    image_place place;
    dataset_image_place(set, number, &place);
    FUZZ_HOLDS(set->adapter->image_path(set, number)[0]);
    for (int32_t k = 0; k < place.n_frames; k++)
        FUZZ_HOLDS(set->adapter->frame(set, number, k)[0]);
}

/* Writes the input and returns the name of what data.path is to be. */
static const char *write_input(char kind, const uint8_t *data, size_t size)
{
    if (kind == 'd') {
        write_file("d/1.txt", data, size);
        write_file("d/2.txt", data, size / 2);
        return "d";
    }
    const char *name = kind == 'p' ? "r.txt" : "r.json";
    write_file(name, data, size);
    return name;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char kind = size > 0 && data[0] && strchr("tpd", data[0]) ? (char)data[0] : 0;
    const bool document = kind == 'p' || kind == 'd';
    conf options = conf_defaults();
    dataset *set;
    arena memory;
    char path[512];
    if (!folder[0])
        make_folder();
    join_file(write_input(kind, data + (kind != 0), size - (kind != 0)), path, sizeof path);
    options.data_path = path;
    options.data_format = kind ? DATA_TEXT : DATA_CONVERSATIONS;
    options.data_stage_weights = "0.5,0,2";
    options.data_loss_on = size % 2 ? LOSS_ON_LAST : LOSS_ON_ALL;
    status_clear();
    if (dataset_open(&options, &set) != ST_OK) {
        FUZZ_HOLDS(status_text()[0]);
        return 0;
    }
    arena_init(&memory, 0);
    /* Goes backwards, so that restart points are used. */
    for (int64_t i = set->adapter->samples(set) - 1; i >= 0; i--)
        check_sample(set, i, &memory);
    for (int64_t i = 0; document && i < set->adapter->samples(set); i++)
        check_document(set, i, kind == 'd', &memory);
    for (int64_t j = 0; j < set->adapter->images(set); j++)
        check_image(set, j);
    dataset_close(&set);
    arena_done(&memory);
    return 0;
}
