/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.c: see hf_export.h. hf_plan.c decides what is written, and hf_slices.c writes the
 * weights. config.json is the edited text of the source's, so that everything else stays byte for
 * byte, including members that this trainer does not know. */
#include "trainer/checkpoint/hf/hf_export.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf/hf_plan.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/model/dims/dims.h"
#include "trainer/model/dims/hf_folder.h"

/* ---- config.json ---- */

enum { CONFIG_MAX = 1 << 20 /* bytes; published ones have about 2,000 */ };

/* Whether both describe the same model. */
static status same_dims(const model_dims *dims, const model_dims *from, bool *out)
{
    char *ours = NULL, *theirs = NULL;
    status st = dims_config_json(dims, &ours);
    if (st == ST_OK)
        st = dims_config_json(from, &theirs);
    *out = st == ST_OK && strcmp(ours, theirs) == 0;
    free(ours);
    free(theirs);
    return st;
}

static status read_text(const char *folder, char **out)
{
    char path[STATUS_PATH_MAX];
    TRY(hf_path(path, folder, "config.json"));
    FILE *file = fopen(path, "rb");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    char *text = malloc(CONFIG_MAX + 1);
    const int64_t count = text ? file_read_all(fileno(file), text, CONFIG_MAX + 1, -1) : 0;
    fclose(file);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for config.json");
    if (count < 0 || count > CONFIG_MAX) {
        free(text);
        return FAIL_IN(ST_IO, path, "the file cannot be read, or it is larger than %d bytes",
                       CONFIG_MAX);
    }
    text[count] = 0;
    *out = text;
    return ST_OK;
}

/* If `"key" : value` begins at `at`, returns its value: a text (without its quotes) or another
 * scalar, as `text` says. Otherwise NULL. */
static const char *value_of(const char *at, const char *key, bool text, const char **out_end)
{
    size_t length = strlen(key);
    static const char blank[] = " \t\r\n";
    if (at[0] != '"' || strncmp(at + 1, key, length) != 0 || at[length + 1] != '"')
        return NULL;
    at += length + 2;
    at += strspn(at, blank);
    if (*at++ != ':')
        return NULL;
    at += strspn(at, blank);
    if ((*at == '"') != text)
        return NULL;
    at += text;
    *out_end = at + strcspn(at, text ? "\"" : ",}] \t\r\n");
    return at;
}

/* New values of members, at whatever depth they stand; NULL: the member is not changed. */
typedef struct changes {
    const char *dtype, *tie;
} changes;

static const char *changed_value(const changes *differences, const char *at, const char **out_new,
                                 const char **out_end)
{
    const struct {
        const char *key, *value;
        bool text;
    } members[] = {{"dtype", differences->dtype, true},
                   {"torch_dtype", differences->dtype, true},
                   {"tie_word_embeddings", differences->tie, false}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        *out_new = members[i].value;
        const char *value =
            *out_new ? value_of(at, members[i].key, members[i].text, out_end) : NULL;
        if (value)
            return value;
    }
    return NULL;
}

/* Writes `text`, which is JSON, with those changes and nothing else changed. */
static status write_changed(const char *folder, const char *text, const changes *differences)
{
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for config.json");
    for (const char *at = text; *at;) {
        const char *end, *new, *value = changed_value(differences, at, &new, &end);
        if (!value) {
            fputc(*at++, file);
            continue;
        }
        fprintf(file, "%.*s%s", (int)(value - at), at, new);
        at = end;
    }
    bool bad = ferror(file);
    bad = fclose(file) != 0 || bad;
    status st = bad ? FAIL(ST_NO_MEMORY, "no memory for config.json")
                    : hf_write_text(folder, "config.json", out, size);
    free(out);
    return st;
}

/* Whether transformers 4.57 would tie the head to the embedding by the source's config.json. */
static status tied_by_4(const char *source, bool *out)
{
    char path[STATUS_PATH_MAX];
    json_value *config = NULL;
    head_ties ties = {0};
    TRY(hf_path(path, source, "config.json"));
    TRY(json_load(path, &config));
    status st = head_read_ties(config, path, &ties);
    json_free(&config);
    *out = ties.text;
    return st;
}

/* Writes config.json into `folder`: the source's, byte for byte, if its dimensions are those of
 * the model, else one of our own. source: the folder that the model came from; NULL: none.
 *
 * Two kinds of values are changed in the copy. If dtype is not NULL, the members "dtype" and
 * "torch_dtype" get that value, since readers go by them. If the model's head has weights of its
 * own but transformers 4.57 would tie it to the embedding all the same, and so drop what is stored
 * (model/dims/hf_folder.h), every "tie_word_embeddings" becomes false. */
static status hf_write_config(const model_dims *dims, const char *folder, const char *source,
                              const char *dtype)
{
    model_dims from = {0};
    bool same = false, drops_head = false;
    char *text = NULL;
    if (source && file_is_folder(source) && dims_load(source, &from) == ST_OK)
        TRY(same_dims(dims, &from, &same));
    status_clear(); /* a source that is not a model is no error */
    if (same && !dims->text.tied)
        TRY(tied_by_4(source, &drops_head));
    if (same && !dtype && !drops_head)
        return hf_copy_file(source, folder, "config.json");
    TRY(same ? read_text(source, &text) : dims_config_json(dims, &text));
    status st =
        write_changed(folder, text, &(changes){.dtype = dtype, .tie = drops_head ? "false" : NULL});
    free(text);
    return st;
}

/* ---- the folder ---- */

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
static status write_index(const hf_plan *plan, const char *folder)
{
    char *text = NULL;
    size_t size = 0;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_object(&writer, "metadata");
    json_put_key_int(&writer, "total_size", plan->total_bytes);
    json_end_object(&writer);
    json_begin_key_object(&writer, "weight_map");
    for (int64_t i = 0; i < plan->count; i++)
        json_put_key_cstr(&writer, plan->items[i].piece.name, plan->files[plan->items[i].file]);
    json_end_object(&writer);
    json_end_object(&writer);
    TRY(json_writer_take(&writer, &text, &size));
    status st = hf_write_text(folder, index_name, text, size);
    free(text);
    return st;
}

static status write_weights(const hf_plan *plan, const char *folder,
                            const hf_export_options *options, stream *queue)
{
    const hf_part own = {.alone = options->writers <= 1, .with_header = options->writer == 0};
    TRY(hf_write_slices(plan, folder, own, queue, options->value_bytes));
    if (plan->single || options->writer > 0)
        return ST_OK;
    return plan->same ? hf_copy_file(options->source, folder, index_name)
                      : write_index(plan, folder);
}

static bool is_written(const hf_plan *plan, const char *name)
{
    for (int64_t i = 0; i < plan->n_files; i++) {
        if (strcmp(name, plan->files[i]) == 0)
            return true;
    }
    return !plan->single && strcmp(name, index_name) == 0;
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
static status remove_stale(const hf_plan *plan, const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return FAIL_IN(ST_IO, folder, "%s", strerror(errno));
    status st = ST_OK;
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        char path[STATUS_PATH_MAX];
        if (!is_weights(entry->d_name) || is_written(plan, entry->d_name))
            continue;
        st = hf_path(path, folder, entry->d_name);
        if (st == ST_OK && unlink(path) != 0)
            st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    }
    closedir(dir);
    return st;
}

static status copy_files(const char *from, const char *folder, const char *const *names,
                         size_t count)
{
    if (!from || !file_is_folder(from))
        return ST_OK;
    for (size_t i = 0; i < count; i++)
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
static const char *config_dtype(const hf_plan *plan, const hf_export_options *options)
{
    if (options->dtype == HF_EXPORT_AS_SOURCE || plan->count == 0)
        return NULL;
    return options->dtype == HF_EXPORT_F32 ? "float32" : "bfloat16";
}

status hf_export(const params *registry, stream *queue, const model_dims *dims, const char *folder,
                 const hf_export_options *options)
{
    hf_plan plan = {0};
    const char *tokenizer =
        options->tokenizer && options->tokenizer[0] ? options->tokenizer : options->source;
    status st;
    TRY(make_folder(folder));
    TRY_OR(done, hf_plan_make(registry, options, &plan));
    if (options->sum)
        *options->sum = (hf_export_sum){plan.count, plan.n_files, plan.total_bytes};
    TRY_OR(done, write_weights(&plan, folder, options, queue));
    if (options->writer > 0)
        goto done;
    TRY_OR(done, remove_stale(&plan, folder));
    TRY_OR(done, hf_write_config(dims, folder, options->source, config_dtype(&plan, options)));
    TRY_OR(done, copy_files(options->source, folder, processor_files,
                            sizeof processor_files / sizeof processor_files[0]));
    st = copy_files(tokenizer, folder, tokenizer_files,
                    sizeof tokenizer_files / sizeof tokenizer_files[0]);
done:
    hf_plan_done(&plan);
    return st;
}
