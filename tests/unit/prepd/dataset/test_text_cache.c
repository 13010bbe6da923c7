/* SPDX-License-Identifier: Apache-2.0 */
/* Test of text_cache.c, which keeps the places of documents and the restart points of a
 * compressed file for the next start: the documents are the same with it and after any damage to
 * it. */
#include "tests/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/base/rng.h"
#include "common/base/span.h"
#include "prepd/dataset/adapters/plain_text.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { DOCUMENTS = 36, DOCUMENT_BYTES = 1 << 19, DAMAGES = 24 };

/* Writes a file of one gzip member, long enough for two restart points inside it. */
static void write_documents(const char *path)
{
    static char text[DOCUMENT_BYTES + 1];
    const rng_key key = rng_key_make(harness_seed(), "documents");
    gzFile file = gzopen(path, "wb1");
    assert_non_null(file);
    for (int document_ = 0; document_ < DOCUMENTS; document_++) {
        for (int i = 0; i < DOCUMENT_BYTES; i++)
            text[i] =
                (char)('a' + rng_below(key, (uint64_t)document_ * DOCUMENT_BYTES + (uint64_t)i, 8));
        gzprintf(file, "{\"text\": \"%d ", document_);
        assert_int_equal(gzwrite(file, text, DOCUMENT_BYTES), DOCUMENT_BYTES);
        gzputs(file, "\"}\n");
        if (document_ == 5)
            gzputs(file, "{\"no\": 1}\n");
    }
    assert_int_equal(gzclose(file), Z_OK);
}

static void find_cache(const char *folder, char out[4096])
{
    DIR *dir = opendir(folder);
    out[0] = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strncmp(entry->d_name, "text-", 5) == 0)
            snprintf(out, 4096, "%s/%.200s", folder, entry->d_name);
    closedir(dir);
}

static void read_file(const char *path, uint8_t **out, size_t *out_n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *out_n = (size_t)ftell(file);
    rewind(file);
    *out = malloc(*out_n);
    assert_int_equal(fread(*out, 1, *out_n, file), *out_n);
    fclose(file);
}

static void write_file(const char *path, const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

/* Opens the data set and reads documents near its end and its beginning, for which restart points
 * are used, and one that is not a document. */
static void open_and_look(const conf *options, hash128 *out_identity)
{
    static const int64_t looked_at[] = {DOCUMENTS - 1, 2, 6};
    dataset *set;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(dataset_open(options, &set));
    assert_int_equal(set->adapter->samples(set), DOCUMENTS + 1);
    *out_identity = set->adapter->identity(set);
    for (size_t k = 0; k < 3; k++) {
        const int64_t i = looked_at[k];
        sample smp;
        assert_ok(set->adapter->sample(set, i, &memory, &smp));
        assert_int_equal(smp.cause != NULL, i == 6);
        if (!smp.cause)
            assert_int_equal(strtoll(smp.turns->parts->text, NULL, 10), i - (i > 6));
    }
    dataset_close(&set);
    arena_done(&memory);
}

static void test_text_cache__damage_costs_only_time(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096], cache[4096];
    uint8_t *bytes, *now;
    size_t count, n_now;
    hash128 first, identity;
    conf options = conf_defaults();
    snprintf(path, sizeof path, "%s/big.jsonl.gz", folder);
    write_documents(path);
    options.data_format = DATA_TEXT;
    options.data_path = path;
    options.data_split = "train";
    options.prepd_cache_dir = folder;
    open_and_look(&options, &first);
    find_cache(folder, cache);
    read_file(cache, &bytes, &count);
    open_and_look(&options, &identity); /* this time from the cache */
    assert_memory_equal(&first, &identity, sizeof first);
    const rng_key key = rng_key_make(harness_seed(), "damage");
    const size_t head = 8 + (size_t)load_u64(bytes),
                 tables = head + 8 * (2 + 4 * (DOCUMENTS + 1) + 9);
    for (uint64_t k = 0; k < DAMAGES; k++) {
        /* A third of the damages each are in the head, in the tables, and anywhere. */
        const size_t most = k % 3 == 0 ? head : k % 3 == 1 ? tables : count;
        const size_t from = k % 3 == 1 ? head : 0;
        uint8_t *at = bytes + from + rng_below(key, 2 * k, most - from), was = *at;
        *at ^= (uint8_t)(1 + rng_below(key, 2 * k + 1, 255));
        write_file(cache, bytes, count);
        *at = was;
        open_and_look(&options, &identity);
        assert_memory_equal(&first, &identity, sizeof first);
        read_file(cache, &now, &n_now);
        assert_true(n_now == count &&
                    memcmp(now, bytes, count) == 0); /* the cache was made again */
        free(now);
    }
    write_file(cache, bytes, count - 1);
    open_and_look(&options, &identity);
    read_file(cache, &now, &n_now);
    assert_true(n_now == count && memcmp(now, bytes, count) == 0);
    free(now);
    free(bytes);
    harness_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_cache__damage_costs_only_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
