/* Test of plain_text_cache.c, which keeps the places of documents and the restart points of a
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
#include "prepd/dataset/plain_text.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { DOCUMENTS = 36, DOCUMENT_BYTES = 1 << 19, DAMAGES = 24 };

/* Writes a file of one gzip member, long enough for two restart points inside it. */
static void write_documents(const char *path)
{
    static char text[DOCUMENT_BYTES + 1];
    const rng_key key = rng_key_make(harness_seed(), "documents");
    gzFile f = gzopen(path, "wb1");
    assert_non_null(f);
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = 0; i < DOCUMENT_BYTES; i++)
            text[i] = (char)('a' + rng_below(key, (uint64_t)d * DOCUMENT_BYTES + (uint64_t)i, 8));
        gzprintf(f, "{\"text\": \"%d ", d);
        assert_int_equal(gzwrite(f, text, DOCUMENT_BYTES), DOCUMENT_BYTES);
        gzputs(f, "\"}\n");
        if (d == 5)
            gzputs(f, "{\"no\": 1}\n");
    }
    assert_int_equal(gzclose(f), Z_OK);
}

static void find_cache(const char *folder, char out[4096])
{
    DIR *dir = opendir(folder);
    out[0] = 0;
    for (struct dirent *e; (e = readdir(dir));)
        if (strncmp(e->d_name, "text-", 5) == 0)
            snprintf(out, 4096, "%s/%.200s", folder, e->d_name);
    closedir(dir);
}

static void read_file(const char *path, uint8_t **out, size_t *out_n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *out_n = (size_t)ftell(f);
    rewind(f);
    *out = malloc(*out_n);
    assert_int_equal(fread(*out, 1, *out_n, f), *out_n);
    fclose(f);
}

static void write_file(const char *path, const uint8_t *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Opens the data set and reads documents near its end and its beginning, for which restart points
 * are used, and one that is not a document. */
static void open_and_look(const conf *c, hash128 *out_identity)
{
    static const int64_t looked_at[] = {DOCUMENTS - 1, 2, 6};
    dataset *d;
    arena a;
    arena_init(&a, 0);
    assert_ok(dataset_open(c, &d));
    assert_int_equal(d->adapter->samples(d), DOCUMENTS + 1);
    *out_identity = d->adapter->identity(d);
    for (size_t k = 0; k < 3; k++) {
        const int64_t i = looked_at[k];
        sample s;
        assert_ok(d->adapter->sample(d, i, &a, &s));
        assert_int_equal(s.cause != NULL, i == 6);
        if (!s.cause)
            assert_int_equal(strtoll(s.turns->parts->text, NULL, 10), i - (i > 6));
    }
    dataset_close(&d);
    arena_done(&a);
}

static void test_text_cache__damage_costs_only_time(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[4096], cache[4096];
    uint8_t *bytes, *now;
    size_t n, n_now;
    hash128 first, identity;
    conf c = conf_defaults();
    snprintf(path, sizeof path, "%s/big.jsonl.gz", folder);
    write_documents(path);
    c.data_format = DATA_TEXT;
    c.data_path = path;
    c.data_split = "train";
    c.prepd_cache_dir = folder;
    open_and_look(&c, &first);
    find_cache(folder, cache);
    read_file(cache, &bytes, &n);
    open_and_look(&c, &identity); /* this time from the cache */
    assert_memory_equal(&first, &identity, sizeof first);
    const rng_key key = rng_key_make(harness_seed(), "damage");
    const size_t head = 8 + (size_t)load_u64(bytes),
                 tables = head + 8 * (2 + 4 * (DOCUMENTS + 1) + 9);
    for (uint64_t k = 0; k < DAMAGES; k++) {
        /* A third of the damages each are in the head, in the tables, and anywhere. */
        const size_t most = k % 3 == 0 ? head : k % 3 == 1 ? tables : n;
        const size_t from = k % 3 == 1 ? head : 0;
        uint8_t *at = bytes + from + rng_below(key, 2 * k, most - from), was = *at;
        *at ^= (uint8_t)(1 + rng_below(key, 2 * k + 1, 255));
        write_file(cache, bytes, n);
        *at = was;
        open_and_look(&c, &identity);
        assert_memory_equal(&first, &identity, sizeof first);
        read_file(cache, &now, &n_now);
        assert_true(n_now == n && memcmp(now, bytes, n) == 0); /* the cache was made again */
        free(now);
    }
    write_file(cache, bytes, n - 1);
    open_and_look(&c, &identity);
    read_file(cache, &now, &n_now);
    assert_true(n_now == n && memcmp(now, bytes, n) == 0);
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
