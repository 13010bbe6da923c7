/* hf_config.c: implements hf_config.h. It edits the text of the source's config.json, so that
 * everything else stays byte for byte, including members that this trainer does not know. */
#include "trainer/checkpoint/hf_config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/head.h"

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

status hf_write_config(const model_dims *dims, const char *folder, const char *source,
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
