/* Plain text in .txt files: where documents begin and end, what is wrong with bad ones, which files
 * of a folder are taken; and files that no format reads, which are refused by name. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include "prepd/dataset/dataset.h"
#include "prepd/dataset/records.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { PATH = 1024, LONG_BYTES = 65 << 20 };

typedef struct fixture {
    char *folder;
    char path[PATH];
    conf c;
    dataset *d;
    arena a;
} fixture;

static void begin(fixture *f, int format)
{
    *f = (fixture){.folder = harness_temp(), .c = conf_defaults()};
    f->c.data_format = format;
    f->c.data_path = f->folder;
    arena_init(&f->a, 0);
}

static void end(fixture *f)
{
    dataset_close(&f->d);
    arena_done(&f->a);
    harness_remove(&f->folder);
}

static void write_bytes(const fixture *f, const char *name, const char *bytes, size_t n)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(to), 0);
}

static void write_text(const fixture *f, const char *name, const char *text)
{
    write_bytes(f, name, text, strlen(text));
}

static void open_file(fixture *f, const char *name)
{
    dataset_close(&f->d);
    snprintf(f->path, sizeof f->path, "%s/%s", f->folder, name);
    f->c.data_path = f->path;
    assert_ok(dataset_open(&f->c, &f->d));
}

static sample fetch(fixture *f, int64_t i)
{
    sample s;
    assert_ok(f->d->adapter->sample(f->d, i, &f->a, &s));
    assert_true(s.plain);
    assert_int_equal(s.n_turns, s.cause ? 0 : 1);
    return s;
}

static void assert_document(fixture *f, int64_t i, const char *name, const char *text)
{
    const sample s = fetch(f, i);
    assert_null(s.cause);
    assert_string_equal(s.name, name);
    assert_string_equal(s.turns->parts->text, text);
    assert_int_equal(s.turns->parts->text_bytes, strlen(text));
    assert_true(s.turns->trained && s.turns->role == ROLE_ASSISTANT);
}

static void test_blocks__blank_lines_divide(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf\n \t\r\n  First line,\r\nsecond line \n\t\n\n\nOnly "
                               "\xc3\xa9\xe2\x82\xac.\r\n\r\nLast,\nwithout an end";
    fixture f;
    begin(&f, DATA_TEXT);
    write_text(&f, "book.txt", text);
    open_file(&f, "book.txt");
    assert_int_equal(f.d->adapter->samples(f.d), 3);
    assert_document(&f, 2, "book.txt:10", "Last,\nwithout an end");
    assert_document(&f, 0, "book.txt:3", "  First line,\nsecond line ");
    assert_document(&f, 1, "book.txt:8", "Only \xc3\xa9\xe2\x82\xac.");
    const hash128 whole = f.d->adapter->identity(f.d);
    f.c.data_limit = 2;
    open_file(&f, "book.txt");
    assert_int_equal(f.d->adapter->samples(f.d), 2);
    const hash128 two = f.d->adapter->identity(f.d);
    assert_memory_not_equal(&whole, &two, sizeof whole);
    end(&f);
}

static void test_blocks__bad_ones_keep_their_numbers(void **state)
{
    (void)state;
    static const char text[] = "good\n\none\nLatin \xe9\n\nbinary \0 here\n\nlast\n";
    fixture f;
    begin(&f, DATA_TEXT);
    write_bytes(&f, "t.txt", text, sizeof text - 1);
    open_file(&f, "t.txt");
    assert_int_equal(f.d->adapter->samples(f.d), 4);
    assert_string_equal(fetch(&f, 1).cause,
                        "t.txt:4: the text is not UTF-8: convert the file with iconv");
    assert_string_equal(fetch(&f, 2).cause, "t.txt:6: the text has a zero byte, so it is no text");
    assert_document(&f, 3, "t.txt:8", "last");
    write_text(&f, "none.txt", "\n \n");
    snprintf(f.path, sizeof f.path, "%s/none.txt", f.folder);
    dataset_close(&f.d);
    assert_fails(ST_BAD_INPUT, dataset_open(&f.c, &f.d), "it holds no text");
    end(&f);
}

/* Two documents of more than RECORD_BYTES, of short lines and of one line, before a good one. */
static void test_blocks__too_long(void **state)
{
    (void)state;
    fixture f;
    begin(&f, DATA_TEXT);
    char *text = malloc(2 * (size_t)LONG_BYTES + 8);
    assert_non_null(text);
    memset(text, 'a', 2 * (size_t)LONG_BYTES);
    for (size_t i = 79; i < LONG_BYTES; i += 80)
        text[i] = '\n';
    memcpy(text + LONG_BYTES, "\n\n", 2);
    memcpy(text + 2 * (size_t)LONG_BYTES, "\n\nend", 5);
    write_bytes(&f, "long.txt", text, 2 * (size_t)LONG_BYTES + 5);
    free(text);
    open_file(&f, "long.txt");
    assert_int_equal(f.d->adapter->samples(f.d), 3);
    assert_non_null(strstr(fetch(&f, 0).cause, "more than 64 MiB; blank lines divide a file"));
    assert_non_null(strstr(fetch(&f, 1).cause, "the document has more than 64 MiB"));
    assert_string_equal(fetch(&f, 2).turns->parts->text, "end");
    end(&f);
}

static void test_blocks__compressed_the_same(void **state)
{
    (void)state;
    enum { N = 3000 };
    fixture f;
    char line[64], path[PATH];
    begin(&f, DATA_TEXT);
    snprintf(path, sizeof path, "%s/t.txt.gz", f.folder);
    gzFile to = gzopen(path, "wb6");
    for (int i = 0; i < N; i++)
        gzprintf(to, "document %d\r\nof many\r\n\r\n", i);
    assert_int_equal(gzclose(to), Z_OK);
    open_file(&f, "t.txt.gz");
    assert_int_equal(f.d->adapter->samples(f.d), N);
    for (int i = N - 1; i >= 0; i -= 501) {
        snprintf(line, sizeof line, "document %d\nof many", i);
        assert_string_equal(fetch(&f, i).turns->parts->text, line);
    }
    end(&f);
}

static void test_folder__each_file_is_a_document(void **state)
{
    (void)state;
    fixture f;
    begin(&f, DATA_TEXT);
    write_text(&f, "b.txt", "\n\nSecond,\n\nin two paragraphs.\n\n");
    write_text(&f, "a.txt", "First.");
    write_text(&f, "c.txt", " \n");
    write_text(&f, ".hidden.txt", "Not this.");
    write_text(&f, "notes.md", "Nor this.");
    assert_false(records_have_splits(&f.c));
    assert_ok(dataset_open(&f.c, &f.d));
    assert_int_equal(f.d->adapter->samples(f.d), 3);
    assert_document(&f, 1, "b.txt", "Second,\n\nin two paragraphs.");
    assert_document(&f, 0, "a.txt", "First.");
    assert_string_equal(fetch(&f, 2).cause, "c.txt: the file holds no text");
    /* Where there are JSON lines, they are the data set. */
    dataset_close(&f.d);
    write_text(&f, "train.jsonl", "{\"text\": \"JSON.\"}\n");
    assert_true(records_have_splits(&f.c));
    assert_ok(dataset_open(&f.c, &f.d));
    assert_int_equal(f.d->adapter->samples(f.d), 1);
    assert_document(&f, 0, "train.jsonl:1", "JSON.");
    end(&f);
}

static void test_folder__no_splits(void **state)
{
    (void)state;
    fixture f;
    begin(&f, DATA_TEXT);
    write_text(&f, "train-a.txt", "a");
    write_text(&f, "train-b.txt", "b");
    assert_ok(dataset_open(&f.c, &f.d)); /* all of them say so */
    dataset_close(&f.d);
    write_text(&f, "val-a.txt", "c");
    assert_fails(ST_CONFIG, dataset_open(&f.c, &f.d), "2 of the 3 .txt files have \"train\"");
    f.c.data_split = "test";
    assert_fails(ST_CONFIG, dataset_open(&f.c, &f.d), "1 of the 3 .txt files have \"val\"");
    end(&f);
}

/* More files than may be open at once, read in another order than they lie. */
static void test_folder__of_many_files_few_are_open(void **state)
{
    (void)state;
    enum { N = 300, OPEN = 64 };
    struct rlimit before, few = {OPEN, OPEN};
    fixture f;
    char name[32], text[32];
    begin(&f, DATA_TEXT);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%04d.txt", i);
        snprintf(text, sizeof text, "number %d", i);
        write_text(&f, name, text);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_ok(dataset_open(&f.c, &f.d));
    assert_int_equal(f.d->adapter->samples(f.d), N);
    for (int i = 0; i < N; i++) {
        const int k = i * 7 % N;
        snprintf(text, sizeof text, "number %d", k);
        assert_string_equal(fetch(&f, k).turns->parts->text, text);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    end(&f);
}

/* Told once for the file, and not for each of its lines. */
static void test_other_files__are_refused_whole(void **state)
{
    (void)state;
    static const struct {
        int format;
        const char *name, *text, *words;
    } cases[] = {
        {DATA_TEXT, "book.md", "\n# A book\n\nIt was night.\n",
         "begins with \"# A book\", which is not"},
        {DATA_TEXT, "book.md", "It was night.\n", "a file whose name ends in .txt"},
        {DATA_TEXT, "l.txt", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "rename it to .jsonl"},
        {DATA_CONVERSATIONS, "talk.txt", "It was night.\n", "expected a record {..} on each line"},
        {DATA_CONVERSATIONS, "t.jsonl", "question\tanswer\nwhat?\tthat\n", "formats.md shows"},
        {DATA_TEXT, "t.CSV", "text\na\n", "CSV files are not read. Turn it into JSON lines"},
        {DATA_CONVERSATIONS, "t.csv", "a\n", "wants \"question\" and \"answer\""},
        {DATA_VQAV2, "t.tsv", "a\n", "pandas.read_table("},
        {DATA_WEBDATASET, "t.parquet", "PAR1", "Parquet files are not read"},
        {DATA_VIDEO, "t.xlsx", "PK", "pandas.read_excel("},
        {DATA_TEXT, "t.arrow", "ARROW1", "data.format text wants \"text\""},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        fixture f;
        begin(&f, cases[k].format);
        write_text(&f, cases[k].name, cases[k].text);
        snprintf(f.path, sizeof f.path, "%s/%s", f.folder, cases[k].name);
        f.c.data_path = f.path;
        assert_fails(ST_BAD_INPUT, dataset_open(&f.c, &f.d), cases[k].words);
        f.c.data_path = f.folder; /* a folder with nothing but that */
        if (k > 4)
            assert_fails(ST_BAD_INPUT, dataset_open(&f.c, &f.d), "files are not read. Turn it");
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks__blank_lines_divide),
        cmocka_unit_test(test_blocks__bad_ones_keep_their_numbers),
        cmocka_unit_test(test_blocks__too_long),
        cmocka_unit_test(test_blocks__compressed_the_same),
        cmocka_unit_test(test_folder__each_file_is_a_document),
        cmocka_unit_test(test_folder__no_splits),
        cmocka_unit_test(test_folder__of_many_files_few_are_open),
        cmocka_unit_test(test_other_files__are_refused_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
