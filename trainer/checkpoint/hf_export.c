/* hf_export.c: see hf_export.h. */
#include "trainer/checkpoint/hf_export.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/convert.h"

static const int64_t default_shard_bytes = 5000000000; /* as transformers cuts them */
static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static const char *const processor_files[] = {"generation_config.json", "preprocessor_config.json",
                                              "video_preprocessor_config.json"};
static const char *const tokenizer_files[] = {"tokenizer.json",
                                              "tokenizer_config.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "chat_template.json",
                                              "chat_template.jinja",
                                              "special_tokens_map.json",
                                              "added_tokens.json"};

/* What is written: the pieces, their dtypes and shards. */
typedef struct plan {
    param_piece *pieces;
    st_dtype *dtype;
    int64_t *shard; /* of each piece, from 0 */
    int64_t n, n_shards, total_bytes;
} plan;

static void plan_done(plan *e)
{
    free(e->pieces);
    free(e->dtype);
    free(e->shard);
}

static bool is_folder(const char *path)
{
    struct stat info;
    return path && path[0] && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static status choose_dtypes(plan *e, const hf_export_options *o)
{
    hf_folder source = {0};
    if (o->dtype == HF_EXPORT_AS_SOURCE && is_folder(o->source) && hf_has_weights(o->source))
        TRY(hf_folder_open(o->source, &source));
    for (int64_t i = 0; i < e->n; i++) {
        const st_tensor *t = hf_folder_find(&source, e->pieces[i].name);
        st_dtype same = t && convert_known(t->dtype) ? t->dtype : DT_BF16;
        e->dtype[i] = o->dtype == HF_EXPORT_F32 ? DT_F32 : same;
    }
    hf_folder_close(&source);
    return ST_OK;
}

/* Greedy in order; a tensor is never split. */
static void choose_shards(plan *e, int64_t shard_bytes)
{
    int64_t filled = 0;
    for (int64_t i = 0; i < e->n; i++) {
        int64_t bytes = e->pieces[i].count * (int64_t)st_dtype_size(e->dtype[i]);
        if (filled > 0 && filled + bytes > shard_bytes) {
            e->n_shards++;
            filled = 0;
        }
        e->shard[i] = e->n_shards;
        filled += bytes;
        e->total_bytes += bytes;
    }
    e->n_shards++;
}

static status plan_make(plan *e, const params *p, const hf_export_options *o)
{
    TRY(params_pieces(p, p->text_only_names, &e->pieces, &e->n));
    e->dtype = malloc((size_t)(e->n + 1) * sizeof *e->dtype);
    e->shard = malloc((size_t)(e->n + 1) * sizeof *e->shard);
    if (!e->dtype || !e->shard)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)e->n);
    TRY(choose_dtypes(e, o));
    choose_shards(e, o->shard_bytes > 0 ? o->shard_bytes : default_shard_bytes);
    return ST_OK;
}

static void shard_name(const plan *e, int64_t shard, char out[64])
{
    if (e->n_shards == 1)
        snprintf(out, 64, "%s", single_name);
    else
        snprintf(out, 64, "model-%05lld-of-%05lld.safetensors", (long long)shard + 1,
                 (long long)e->n_shards);
}

static status write_index(const plan *e, const char *folder)
{
    char name[64], *text = NULL;
    size_t size = 0;
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key(&w, "metadata");
    json_begin_object(&w);
    json_put_key(&w, "total_size");
    json_put_int(&w, e->total_bytes);
    json_end_object(&w);
    json_put_key(&w, "weight_map");
    json_begin_object(&w);
    for (int64_t i = 0; i < e->n; i++) {
        shard_name(e, e->shard[i], name);
        json_put_key(&w, e->pieces[i].name);
        json_put_cstr(&w, name);
    }
    json_end_object(&w);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, &size));
    status st = hf_write_text(folder, index_name, text, size);
    free(text);
    return st;
}

static status write_weights(const plan *e, const char *folder, stream *s)
{
    char name[64];
    for (int64_t shard = 0, first = 0; shard < e->n_shards; shard++) {
        int64_t n = 0;
        while (first + n < e->n && e->shard[first + n] == shard)
            n++;
        shard_name(e, shard, name);
        TRY(hf_write_pieces(folder, name, e->pieces + first, e->dtype + first, n, s));
        first += n;
    }
    return e->n_shards > 1 ? write_index(e, folder) : ST_OK;
}

/* Weight files of an earlier export under other names: they would mislead a reader. */
static status remove_stale(const plan *e, const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return FAIL_IN(ST_IO, folder, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        long long i, of;
        int end = 0;
        bool shard =
            sscanf(entry->d_name, "model-%5lld-of-%5lld.safetensors%n", &i, &of, &end) == 2 &&
            end > 0 && entry->d_name[end] == 0;
        bool single = strcmp(entry->d_name, single_name) == 0;
        bool index = strcmp(entry->d_name, index_name) == 0;
        bool stale = e->n_shards == 1 ? shard || index : single || (shard && of != e->n_shards);
        char path[STATUS_PATH_MAX];
        if (!stale)
            continue;
        st = hf_path(path, folder, entry->d_name);
        if (st == ST_OK && unlink(path) != 0)
            st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    }
    closedir(dir);
    return st;
}

/* The source's config.json while it says the same, else one of our own. */
static status write_config(const model_dims *d, const char *folder, const char *source)
{
    model_dims from = {0};
    bool same = is_folder(source) && dims_load(source, &from) == ST_OK;
    if (same) {
        memcpy(from.name, d->name, sizeof from.name);
        char *ours = NULL, *theirs = NULL;
        status st = dims_config_json(d, &ours);
        if (st == ST_OK)
            st = dims_config_json(&from, &theirs);
        same = st == ST_OK && strcmp(ours, theirs) == 0;
        free(ours);
        free(theirs);
        TRY(st);
    }
    status_clear();
    if (same)
        return hf_copy_file(source, folder, "config.json");
    char *text = NULL;
    TRY(dims_config_json(d, &text));
    status st = hf_write_text(folder, "config.json", text, strlen(text));
    free(text);
    return st;
}

static status copy_files(const char *from, const char *folder, const char *const *names, size_t n)
{
    if (!is_folder(from))
        return ST_OK;
    for (size_t i = 0; i < n; i++)
        TRY(hf_copy_file(from, folder, names[i]));
    return ST_OK;
}

static status make_folder(const char *folder)
{
    char parent[STATUS_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", folder);
    char *slash = strrchr(parent, '/');
    if (slash && slash > parent) {
        *slash = 0;
        if (mkdir(parent, 0777) != 0 && errno != EEXIST)
            return FAIL_IN(ST_CANT_CREATE, parent, "%s", strerror(errno));
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return FAIL_IN(ST_CANT_CREATE, folder, "%s", strerror(errno));
    return ST_OK;
}

status hf_export(const params *p, stream *s, const model_dims *d, const char *folder,
                 const hf_export_options *o)
{
    plan e = {0};
    const char *tokenizer = o->tokenizer && o->tokenizer[0] ? o->tokenizer : o->source;
    status st;
    TRY(make_folder(folder));
    TRY_OR(done, plan_make(&e, p, o));
    TRY_OR(done, write_weights(&e, folder, s));
    TRY_OR(done, remove_stale(&e, folder));
    TRY_OR(done, write_config(d, folder, o->source));
    TRY_OR(done, copy_files(o->source, folder, processor_files,
                            sizeof processor_files / sizeof processor_files[0]));
    st = copy_files(tokenizer, folder, tokenizer_files,
                    sizeof tokenizer_files / sizeof tokenizer_files[0]);
done:
    plan_done(&e);
    return st;
}
