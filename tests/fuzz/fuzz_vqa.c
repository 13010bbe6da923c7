/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_vqa.c: any texts as the files of a VQAv2 folder. An input is the questions, a line of four
 * dashes and the annotations; after another such line it may have a list of pictures. The folder
 * must be refused with a message, or every sample must have a cause or its turns. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/prepd/conf_defaults.h"

static char folder[256];

static void remove_files(void)
{
    static const char *const names[] = {"/train_OpenEnded_questions.json",
                                        "/train_annotations.json", "/images.json", "/train2014",
                                        ""};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", folder, names[k]);
        remove(path);
    }
}

static void write_file(const char *name, const void *data, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    FUZZ_HOLDS(file && fwrite(data, 1, size, file) == size);
    fclose(file);
}

static void remove_file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    remove(path);
}

static void make_folder(void)
{
    char path[512];
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.200s/fuzz-vqa-XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_HOLDS(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/train2014", folder);
    FUZZ_HOLDS(mkdir(path, 0777) == 0);
    atexit(remove_files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char border[] = "\n----\n";
    const uint8_t *cut = memmem(data, size, border, sizeof border - 1);
    conf options = conf_defaults();
    dataset *set;
    arena memory;
    if (!cut)
        return 0;
    if (!folder[0])
        make_folder();
    const uint8_t *second = cut + sizeof border - 1, *end = data + size;
    const uint8_t *third = memmem(second, (size_t)(end - second), border, sizeof border - 1);
    write_file("train_OpenEnded_questions.json", data, (size_t)(cut - data));
    write_file("train_annotations.json", second, (size_t)((third ? third : end) - second));
    if (third)
        write_file("images.json", third + sizeof border - 1,
                   (size_t)(end - third) - (sizeof border - 1));
    else
        remove_file("images.json");
    options.data_path = folder;
    for (int way = 0; way < 2; way++) {
        options.data_group = way ? GROUP_CONVERSATION : GROUP_NONE;
        options.data_answer = way ? ANSWER_DRAWN : ANSWER_MAJORITY;
        options.is_held_out = !way;
        status_clear();
        if (dataset_open(&options, &set) != ST_OK) {
            FUZZ_HOLDS(status_text()[0]);
            continue;
        }
        arena_init(&memory, 0);
        for (int64_t i = 0; i < set->adapter->samples(set); i++) {
            sample smp;
            FUZZ_HOLDS(set->adapter->sample(set, i, &memory, &smp) == ST_OK);
            FUZZ_HOLDS(smp.name && smp.name[0] && (smp.cause || smp.n_turns > 0));
            const char *reference = set->adapter->reference(set, i);
            FUZZ_HOLDS(!reference || reference[0] == '{');
            for (int32_t place = 0; !smp.cause && place < smp.n_turns; place++)
                for (int32_t k = 0; k < smp.turns[place].n_parts; k++) {
                    const part *piece = &smp.turns[place].parts[k];
                    FUZZ_HOLDS(piece->text ? piece->text[piece->text_bytes] == 0
                                           : piece->image < smp.n_images);
                }
            for (int32_t k = 0; k < smp.n_images; k++)
                FUZZ_HOLDS(smp.images[k] >= 0 && smp.images[k] < set->adapter->images(set));
        }
        dataset_close(&set);
        arena_done(&memory);
    }
    return 0;
}
