/* SPDX-License-Identifier: Apache-2.0 */
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
    conf options;
    dataset *set;
    arena memory;
} fixture;

static void begin(fixture *setup, int format)
{
    *setup = (fixture){.folder = harness_temp(), .options = conf_defaults()};
    setup->options.data_format = format;
    setup->options.data_path = setup->folder;
    arena_init(&setup->memory, 0);
}

static void end(fixture *setup)
{
    dataset_close(&setup->set);
    arena_done(&setup->memory);
    harness_remove(&setup->folder);
}

static void write_bytes(const fixture *setup, const char *name, const char *bytes, size_t count)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", setup->folder, name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, count, to), count);
    assert_int_equal(fclose(to), 0);
}

static void write_text(const fixture *setup, const char *name, const char *text)
{
    write_bytes(setup, name, text, strlen(text));
}

static void open_file(fixture *setup, const char *name)
{
    dataset_close(&setup->set);
    snprintf(setup->path, sizeof setup->path, "%s/%s", setup->folder, name);
    setup->options.data_path = setup->path;
    assert_ok(dataset_open(&setup->options, &setup->set));
}

static sample fetch(fixture *setup, int64_t index)
{
    sample smp;
    assert_ok(setup->set->adapter->sample(setup->set, index, &setup->memory, &smp));
    assert_true(smp.plain);
    assert_int_equal(smp.n_turns, smp.cause ? 0 : 1);
    return smp;
}

static void assert_document(fixture *setup, int64_t index, const char *name, const char *text)
{
    const sample smp = fetch(setup, index);
    assert_null(smp.cause);
    assert_string_equal(smp.name, name);
    assert_string_equal(smp.turns->parts->text, text);
    assert_int_equal(smp.turns->parts->text_bytes, strlen(text));
    assert_true(smp.turns->trained && smp.turns->role == ROLE_ASSISTANT);
}

static void test_blocks__blank_lines_divide(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf\n \t\r\n  First line,\r\nsecond line \n\t\n\n\nOnly "
                               "\xc3\xa9\xe2\x82\xac.\r\n\r\nLast,\nwithout an end";
    fixture setup;
    begin(&setup, DATA_TEXT);
    write_text(&setup, "book.txt", text);
    open_file(&setup, "book.txt");
    assert_int_equal(setup.set->adapter->samples(setup.set), 3);
    assert_document(&setup, 2, "book.txt:10", "Last,\nwithout an end");
    assert_document(&setup, 0, "book.txt:3", "  First line,\nsecond line ");
    assert_document(&setup, 1, "book.txt:8", "Only \xc3\xa9\xe2\x82\xac.");
    const hash128 whole = setup.set->adapter->identity(setup.set);
    setup.options.data_limit = 2;
    open_file(&setup, "book.txt");
    assert_int_equal(setup.set->adapter->samples(setup.set), 2);
    const hash128 two = setup.set->adapter->identity(setup.set);
    assert_memory_not_equal(&whole, &two, sizeof whole);
    end(&setup);
}

static void test_blocks__bad_ones_keep_their_numbers(void **state)
{
    (void)state;
    static const char text[] = "good\n\none\nLatin \xe9\n\nbinary \0 here\n\nlast\n";
    fixture setup;
    begin(&setup, DATA_TEXT);
    write_bytes(&setup, "t.txt", text, sizeof text - 1);
    open_file(&setup, "t.txt");
    assert_int_equal(setup.set->adapter->samples(setup.set), 4);
    assert_string_equal(fetch(&setup, 1).cause,
                        "t.txt:4: the text is not UTF-8: convert the file with iconv");
    assert_string_equal(fetch(&setup, 2).cause,
                        "t.txt:6: the text has a zero byte, so it is no text");
    assert_document(&setup, 3, "t.txt:8", "last");
    write_text(&setup, "none.txt", "\n \n");
    snprintf(setup.path, sizeof setup.path, "%s/none.txt", setup.folder);
    dataset_close(&setup.set);
    assert_fails(ST_BAD_INPUT, dataset_open(&setup.options, &setup.set), "it holds no text");
    end(&setup);
}

/* Two documents of more than RECORD_BYTES, of short lines and of one line, before a good one. */
static void test_blocks__too_long(void **state)
{
    (void)state;
    fixture setup;
    begin(&setup, DATA_TEXT);
    char *text = malloc(2 * (size_t)LONG_BYTES + 8);
    assert_non_null(text);
    memset(text, 'a', 2 * (size_t)LONG_BYTES);
    for (size_t i = 79; i < LONG_BYTES; i += 80)
        text[i] = '\n';
    memcpy(text + LONG_BYTES, "\n\n", 2);
    memcpy(text + 2 * (size_t)LONG_BYTES, "\n\nend", 5);
    write_bytes(&setup, "long.txt", text, 2 * (size_t)LONG_BYTES + 5);
    free(text);
    open_file(&setup, "long.txt");
    assert_int_equal(setup.set->adapter->samples(setup.set), 3);
    assert_non_null(strstr(fetch(&setup, 0).cause, "more than 64 MiB; blank lines divide a file"));
    assert_non_null(strstr(fetch(&setup, 1).cause, "the document has more than 64 MiB"));
    assert_string_equal(fetch(&setup, 2).turns->parts->text, "end");
    end(&setup);
}

static void test_blocks__compressed_the_same(void **state)
{
    (void)state;
    enum { DOCUMENTS = 3000 };
    fixture setup;
    char line[64], path[PATH];
    begin(&setup, DATA_TEXT);
    snprintf(path, sizeof path, "%s/t.txt.gz", setup.folder);
    gzFile to = gzopen(path, "wb6");
    for (int i = 0; i < DOCUMENTS; i++)
        gzprintf(to, "document %d\r\nof many\r\n\r\n", i);
    assert_int_equal(gzclose(to), Z_OK);
    open_file(&setup, "t.txt.gz");
    assert_int_equal(setup.set->adapter->samples(setup.set), DOCUMENTS);
    for (int i = DOCUMENTS - 1; i >= 0; i -= 501) {
        snprintf(line, sizeof line, "document %d\nof many", i);
        assert_string_equal(fetch(&setup, i).turns->parts->text, line);
    }
    end(&setup);
}

static void test_folder__each_file_is_a_document(void **state)
{
    (void)state;
    fixture setup;
    begin(&setup, DATA_TEXT);
    write_text(&setup, "b.txt", "\n\nSecond,\n\nin two paragraphs.\n\n");
    write_text(&setup, "a.txt", "First.");
    write_text(&setup, "c.txt", " \n");
    write_text(&setup, ".hidden.txt", "Not this.");
    write_text(&setup, "notes.md", "Nor this.");
    assert_false(records_have_splits(&setup.options));
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), 3);
    assert_document(&setup, 1, "b.txt", "Second,\n\nin two paragraphs.");
    assert_document(&setup, 0, "a.txt", "First.");
    assert_string_equal(fetch(&setup, 2).cause, "c.txt: the file holds no text");
    /* Where there are JSON lines, they are the data set. */
    dataset_close(&setup.set);
    write_text(&setup, "train.jsonl", "{\"text\": \"JSON.\"}\n");
    assert_true(records_have_splits(&setup.options));
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), 1);
    assert_document(&setup, 0, "train.jsonl:1", "JSON.");
    end(&setup);
}

static void test_folder__no_splits(void **state)
{
    (void)state;
    fixture setup;
    begin(&setup, DATA_TEXT);
    write_text(&setup, "train-a.txt", "a");
    write_text(&setup, "train-b.txt", "b");
    assert_ok(dataset_open(&setup.options, &setup.set)); /* all of them say so */
    dataset_close(&setup.set);
    write_text(&setup, "val-a.txt", "c");
    assert_fails(ST_CONFIG, dataset_open(&setup.options, &setup.set),
                 "2 of the 3 .txt files have \"train\"");
    setup.options.data_split = "test";
    assert_fails(ST_CONFIG, dataset_open(&setup.options, &setup.set),
                 "1 of the 3 .txt files have \"val\"");
    end(&setup);
}

/* More files than may be open at once, read in another order than they lie. */
static void test_folder__of_many_files_few_are_open(void **state)
{
    (void)state;
    enum { DOCUMENTS = 300, OPEN = 64 };
    struct rlimit before, few = {OPEN, OPEN};
    fixture setup;
    char name[32], text[32];
    begin(&setup, DATA_TEXT);
    for (int i = 0; i < DOCUMENTS; i++) {
        snprintf(name, sizeof name, "%04d.txt", i);
        snprintf(text, sizeof text, "number %d", i);
        write_text(&setup, name, text);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), DOCUMENTS);
    for (int i = 0; i < DOCUMENTS; i++) {
        const int k = i * 7 % DOCUMENTS;
        snprintf(text, sizeof text, "number %d", k);
        assert_string_equal(fetch(&setup, k).turns->parts->text, text);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    end(&setup);
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
        fixture setup;
        begin(&setup, cases[k].format);
        write_text(&setup, cases[k].name, cases[k].text);
        snprintf(setup.path, sizeof setup.path, "%s/%s", setup.folder, cases[k].name);
        setup.options.data_path = setup.path;
        assert_fails(ST_BAD_INPUT, dataset_open(&setup.options, &setup.set), cases[k].words);
        setup.options.data_path = setup.folder; /* a folder with nothing but that */
        if (k > 4)
            assert_fails(ST_BAD_INPUT, dataset_open(&setup.options, &setup.set),
                         "files are not read. Turn it");
        end(&setup);
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
