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
    FILE *f = fopen(path, "wb");
    FUZZ_HOLDS(f && fwrite(data, 1, size, f) == size);
    fclose(f);
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
    conf c = conf_defaults();
    dataset *d;
    arena a;
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
    c.data_path = folder;
    for (int way = 0; way < 2; way++) {
        c.data_group = way ? GROUP_CONVERSATION : GROUP_NONE;
        c.data_answer = way ? ANSWER_DRAWN : ANSWER_MAJORITY;
        c.data_references = !way;
        status_clear();
        if (dataset_open(&c, &d) != ST_OK) {
            FUZZ_HOLDS(status_text()[0]);
            continue;
        }
        arena_init(&a, 0);
        for (int64_t i = 0; i < d->adapter->samples(d); i++) {
            sample s;
            FUZZ_HOLDS(d->adapter->sample(d, i, &a, &s) == ST_OK);
            FUZZ_HOLDS(s.name && s.name[0] && (s.cause || s.n_turns > 0));
            const char *reference = d->adapter->reference(d, i);
            FUZZ_HOLDS(!reference || reference[0] == '{');
            for (int32_t t = 0; !s.cause && t < s.n_turns; t++)
                for (int32_t k = 0; k < s.turns[t].n_parts; k++) {
                    const part *p = &s.turns[t].parts[k];
                    FUZZ_HOLDS(p->text ? p->text[p->text_bytes] == 0 : p->image < s.n_images);
                }
            for (int32_t k = 0; k < s.n_images; k++)
                FUZZ_HOLDS(s.images[k] >= 0 && s.images[k] < d->adapter->images(d));
        }
        dataset_close(&d);
        arena_done(&a);
    }
    return 0;
}
