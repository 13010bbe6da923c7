/* hf_export.c: see hf_export.h. hf_plan.c decides what is written; one rank writes whole files
 * (hf_write.c), several ranks write slices of files (hf_slices.c). */
#include "trainer/checkpoint/hf_export.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf_config.h"
#include "trainer/checkpoint/hf_plan.h"
#include "trainer/checkpoint/hf_slices.h"

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

/* Writes the index, with the tensors in the order of the files. */
static status write_index(const hf_plan *e, const char *folder)
{
    char *text = NULL;
    size_t size = 0;
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_begin_key_object(&w, "metadata");
    json_put_key_int(&w, "total_size", e->total_bytes);
    json_end_object(&w);
    json_begin_key_object(&w, "weight_map");
    for (int64_t i = 0; i < e->count; i++)
        json_put_key_cstr(&w, e->items[i].piece.name, e->files[e->items[i].file]);
    json_end_object(&w);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, &size));
    status st = hf_write_text(folder, index_name, text, size);
    free(text);
    return st;
}

static status write_weights(const hf_plan *plan, const char *folder,
                            const hf_export_options *options, stream *s)
{
    const bool slices = options->writers > 1 || !device_has_storage(s->dev);
    if (slices)
        TRY(hf_write_slices(plan, folder, options->writer == 0, s, options->value_bytes));
    for (int64_t file = 0, first = 0; file < plan->n_files && !slices; file++) {
        int64_t n = 0;
        while (first + n < plan->count && plan->items[first + n].file == file)
            n++;
        TRY(hf_write_items(folder, plan->files[file], plan->items + first, n, s));
        first += n;
    }
    if (plan->single || options->writer > 0)
        return ST_OK;
    return plan->same ? hf_copy_file(options->source, folder, index_name)
                      : write_index(plan, folder);
}

static bool is_written(const hf_plan *e, const char *name)
{
    for (int64_t i = 0; i < e->n_files; i++) {
        if (strcmp(name, e->files[i]) == 0)
            return true;
    }
    return !e->single && strcmp(name, index_name) == 0;
}

static bool is_weights(const char *name)
{
    long long i, of;
    int end = 0;
    if (strcmp(name, single_name) == 0 || strcmp(name, index_name) == 0)
        return true;
    return sscanf(name, "model-%5lld-of-%5lld.safetensors%n", &i, &of, &end) == 2 && end > 0 &&
           name[end] == 0;
}

/* Deletes weight files of an earlier export that have other names, since they would mislead a
 * reader. */
static status remove_stale(const hf_plan *e, const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return FAIL_IN(ST_IO, folder, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char path[STATUS_PATH_MAX];
        if (!is_weights(entry->d_name) || is_written(e, entry->d_name))
            continue;
        st = hf_path(path, folder, entry->d_name);
        if (st == ST_OK && unlink(path) != 0)
            st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    }
    closedir(dir);
    return st;
}

static status copy_files(const char *from, const char *folder, const char *const *names, size_t n)
{
    if (!from || !file_is_folder(from))
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

/* The dtype that config.json must name if the caller chose one; NULL: the member is not changed. */
static const char *config_dtype(const hf_plan *e, const hf_export_options *o)
{
    if (o->dtype == HF_EXPORT_AS_SOURCE || e->count == 0)
        return NULL;
    return o->dtype == HF_EXPORT_F32 ? "float32" : "bfloat16";
}

status hf_export(const params *registry, stream *s, const model_dims *dims, const char *folder,
                 const hf_export_options *options)
{
    hf_plan e = {0};
    const char *tokenizer =
        options->tokenizer && options->tokenizer[0] ? options->tokenizer : options->source;
    status st;
    TRY(params_may_be_kept(registry));
    TRY(make_folder(folder));
    TRY_OR(done, hf_plan_make(registry, options, &e));
    TRY_OR(done, write_weights(&e, folder, options, s));
    if (options->writer > 0)
        goto done;
    TRY_OR(done, remove_stale(&e, folder));
    TRY_OR(done, hf_write_config(dims, folder, options->source, config_dtype(&e, options)));
    TRY_OR(done, copy_files(options->source, folder, processor_files,
                            sizeof processor_files / sizeof processor_files[0]));
    st = copy_files(tokenizer, folder, tokenizer_files,
                    sizeof tokenizer_files / sizeof tokenizer_files[0]);
done:
    hf_plan_done(&e);
    return st;
}
