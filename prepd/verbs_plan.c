/* verbs_plan.c: what the stream will look like; nothing is decoded but headers, for the index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "prepd/dataset/dataset.h"
#include "prepd/plan/index.h"
#include "prepd/plan/plan.h"
#include "prepd/verbs.h"
#include "prepd/verbs_child.h"

typedef struct epoch_sums {
    int64_t rows, docs, images, tokens, patches;
    int64_t fewest_tokens, most_tokens, most_patches;
} epoch_sums;

static status sum_epoch(plan *p, epoch_sums *out)
{
    arena a;
    status st = ST_OK;
    const uint64_t rows = plan_epoch_rows(p);
    epoch_sums s = {.fewest_tokens = rows ? INT64_MAX : 0};
    arena_init(&a, 0);
    for (uint64_t k = 0; k < rows; k++) {
        planned_row r;
        arena_reset(&a);
        TRY_OR(done, plan_row(p, k, &a, &r));
        s.rows++;
        s.docs += r.n_docs;
        s.tokens += r.tokens;
        s.patches += r.patches;
        for (int64_t i = 0; i < r.n_docs; i++)
            s.images += r.docs[i].n_images;
        s.fewest_tokens = r.tokens < s.fewest_tokens ? r.tokens : s.fewest_tokens;
        s.most_tokens = r.tokens > s.most_tokens ? r.tokens : s.most_tokens;
        s.most_patches = r.patches > s.most_patches ? r.patches : s.most_patches;
    }
    *out = s;
done:
    arena_done(&a);
    return st;
}

static double percent(int64_t share, int64_t whole)
{
    return whole ? 100.0 * (double)share / (double)whole : 0.0;
}

static status report(plan *p, const conf *c, const data_index *x)
{
    epoch_sums s;
    int n_buckets;
    const int64_t tokens = plan_token_budget(p), patches = plan_patch_budget(p);
    const shape_bucket *b = plan_buckets(p, &n_buckets);
    char digest[HASH_TEXT];
    TRY(sum_epoch(p, &s));
    hash_print(index_digest(x), digest);
    printf("index                %s\n", digest);
    printf("samples              %lld\n", (long long)index_samples(x));
    printf("refused              %lld\n", (long long)plan_refused(p));
    printf("documents per epoch  %lld\n", (long long)s.docs);
    printf("images per epoch     %lld\n", (long long)s.images);
    printf("rows per epoch       %lld of %lld tokens, %lld patches at most\n", (long long)s.rows,
           (long long)tokens, (long long)patches);
    printf("steps per epoch      %.2f of %lld rows\n",
           (double)s.rows / (double)c->training_global_batch_size,
           (long long)c->training_global_batch_size);
    printf("token fill           %.3f %% (row: fewest %lld, most %lld)\n",
           percent(s.tokens, s.rows * tokens), (long long)s.fewest_tokens,
           (long long)s.most_tokens);
    printf("patch fill           %.3f %% (row: most %lld)\n", percent(s.patches, s.rows * patches),
           (long long)s.most_patches);
    printf("tokens per epoch     %lld, of them visual %.1f %%\n", (long long)s.tokens,
           percent(s.patches / 4, s.tokens));
    for (int i = 0; i < n_buckets; i++)
        printf("bucket %d             tokens %lld patches %lld documents %lld images %lld longest "
               "%lld: %lld rows (%.1f %%)\n",
               i + 1, (long long)b[i].tokens, (long long)b[i].patches, (long long)b[i].documents,
               (long long)b[i].images, (long long)b[i].longest, (long long)b[i].rows,
               percent(b[i].rows, s.rows));
    return ST_OK;
}

/* The index as the private daemon's workers built it, by way of its cache file. */
static status fetch_index(char *const *args, int n_args, data_index **out)
{
    child_daemon daemon = {0};
    client *rows = NULL;
    json_value *welcome = NULL;
    const char *path, *key_text;
    hash128 key;
    status st = ST_OK;
    TRY(child_start(args, n_args, &daemon));
    TRY_OR(done, child_open(&daemon, "train", 0, 1, &rows));
    TRY_OR(done,
           json_parse(client_welcome(rows), strlen(client_welcome(rows)), "welcome", &welcome));
    TRY_OR(done, json_want_text(welcome, "index_file", "welcome", &path));
    TRY_OR(done, json_want_text(welcome, "index_key", "welcome", &key_text));
    if (!hash_parse(key_text, &key)) {
        st = FAIL(ST_PROTOCOL, "index_key \"%s\" is not 32 hex digits", key_text);
        goto done;
    }
    TRY_OR(done, index_load(path, key, out));
done:;
    status_note note = *status_last();
    json_free(&welcome);
    client_close(&rows);
    child_stop(&daemon);
    status_set(&note);
    return st;
}

status verb_plan(int argc, char **argv)
{
    conf c;
    char **args;
    int n_args;
    dataset *d = NULL;
    data_index *x = NULL;
    plan *p = NULL;
    status st = ST_OK;
    TRY(verb_conf(argc, argv, &c, &args, &n_args));
    TRY_OR(done, fetch_index(args, n_args, &x));
    TRY_OR(done, dataset_open(&c, &d));
    TRY_OR(done, plan_new(&c, d, x, PLAN_PACKED, &p));
    TRY_OR(done, report(p, &c, x));
done:
    plan_free(&p);
    dataset_close(&d);
    index_free(&x);
    free(args);
    conf_done(&c);
    return st;
}
