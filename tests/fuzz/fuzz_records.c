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
    FILE *f = fopen(path, "wb");
    FUZZ_HOLDS(f && fwrite(data, 1, size, f) == size);
    fclose(f);
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

static void check_sample(const dataset *d, int64_t i, arena *a)
{
    sample s;
    FUZZ_HOLDS(d->adapter->sample(d, i, a, &s) == ST_OK);
    FUZZ_HOLDS(s.name && s.name[0] && (s.cause || s.n_turns > 0));
    FUZZ_HOLDS(!s.plain || s.cause || s.turns[0].parts[0].text_bytes > 0);
    for (int32_t t = 0; !s.cause && t < s.n_turns; t++)
        for (int32_t k = 0; k < s.turns[t].n_parts; k++) {
            const part *p = &s.turns[t].parts[k];
            FUZZ_HOLDS(p->text ? p->text[p->text_bytes] == 0 : p->image < s.n_images);
            FUZZ_HOLDS(!s.turns[t].weights || s.turns[t].weights[k] >= 0);
        }
    for (int32_t k = 0; k < s.n_images; k++)
        FUZZ_HOLDS(s.images[k] >= 0 && s.images[k] < d->adapter->images(d));
}

/* A document of a .txt file has neither ends of blank lines nor line ends of Windows; one of
 * several in a file has no blank line inside. */
static void check_document(const dataset *d, int64_t i, bool alone, arena *a)
{
    sample s;
    FUZZ_HOLDS(d->adapter->sample(d, i, a, &s) == ST_OK);
    if (s.cause)
        return;
    const char *text = s.turns[0].parts[0].text;
    const size_t n = strlen(text);
    FUZZ_HOLDS(n == (size_t)s.turns[0].parts[0].text_bytes && text[0] != '\n' &&
               text[n - 1] != '\n');
    FUZZ_HOLDS(!strstr(text, "\r\n") && (alone || !strstr(text, "\n\n")));
}

static void check_image(const dataset *d, int64_t j)
{
    image_place place;
    dataset_image_place(d, j, &place);
    FUZZ_HOLDS(d->adapter->image_path(d, j)[0]);
    for (int32_t k = 0; k < place.n_frames; k++)
        FUZZ_HOLDS(d->adapter->frame(d, j, k)[0]);
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
    conf c = conf_defaults();
    dataset *d;
    arena a;
    char path[512];
    if (!folder[0])
        make_folder();
    join_file(write_input(kind, data + (kind != 0), size - (kind != 0)), path, sizeof path);
    c.data_path = path;
    c.data_format = kind ? DATA_TEXT : DATA_CONVERSATIONS;
    c.data_stage_weights = "0.5,0,2";
    c.data_loss_on = size % 2 ? LOSS_ON_LAST : LOSS_ON_ALL;
    status_clear();
    if (dataset_open(&c, &d) != ST_OK) {
        FUZZ_HOLDS(status_text()[0]);
        return 0;
    }
    arena_init(&a, 0);
    /* Goes backwards, so that restart points are used. */
    for (int64_t i = d->adapter->samples(d) - 1; i >= 0; i--)
        check_sample(d, i, &a);
    for (int64_t i = 0; document && i < d->adapter->samples(d); i++)
        check_document(d, i, kind == 'd', &a);
    for (int64_t j = 0; j < d->adapter->images(d); j++)
        check_image(d, j);
    dataset_close(&d);
    arena_done(&a);
    return 0;
}
