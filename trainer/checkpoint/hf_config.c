/* hf_config.c: see hf_config.h. */
#include "trainer/checkpoint/hf_config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/head.h"

enum { CONFIG_MAX = 1 << 20 /* bytes; the real one has about 2,000 */ };

/* Do both mean the same model? */
static status same_dims(const model_dims *d, const model_dims *from, bool *out)
{
    char *ours = NULL, *theirs = NULL;
    status st = dims_config_json(d, &ours);
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
    size_t n = text ? fread(text, 1, CONFIG_MAX + 1, file) : 0;
    bool bad = ferror(file);
    fclose(file);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for config.json");
    if (bad || n > CONFIG_MAX) {
        free(text);
        return FAIL_IN(ST_IO, path, "cannot be read, or is larger than %d bytes", CONFIG_MAX);
    }
    text[n] = 0;
    *out = text;
    return ST_OK;
}

/* The value of a member that begins here, `"key" : value`, a text without its quotes or another
 * scalar; NULL if none does. */
static const char *value_of(const char *at, const char *key, bool text, const char **out_end)
{
    size_t n = strlen(key);
    static const char blank[] = " \t\r\n";
    if (at[0] != '"' || strncmp(at + 1, key, n) != 0 || at[n + 1] != '"')
        return NULL;
    at += n + 2;
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

/* Other values of members, wherever they are; NULL: as they are. */
typedef struct changes {
    const char *dtype, *tie;
} changes;

static const char *changed_value(const changes *c, const char *at, const char **out_new,
                                 const char **out_end)
{
    const struct {
        const char *key, *value;
        bool text;
    } members[] = {{"dtype", c->dtype, true},
                   {"torch_dtype", c->dtype, true},
                   {"tie_word_embeddings", c->tie, false}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        *out_new = members[i].value;
        const char *value =
            *out_new ? value_of(at, members[i].key, members[i].text, out_end) : NULL;
        if (value)
            return value;
    }
    return NULL;
}

/* text, which is JSON, with those changes; all else as it is. */
static status write_changed(const char *folder, const char *text, const changes *c)
{
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for config.json");
    for (const char *at = text; *at;) {
        const char *end, *new, *value = changed_value(c, at, &new, &end);
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

/* Does transformers 4.57 tie the head by the source's config.json? */
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

status hf_write_config(const model_dims *d, const char *folder, const char *source,
                       const char *dtype)
{
    model_dims from = {0};
    bool same = false, drops_head = false;
    char *text = NULL;
    if (source && file_is_folder(source) && dims_load(source, &from) == ST_OK)
        TRY(same_dims(d, &from, &same));
    status_clear(); /* a source that is no model is no fault */
    if (same && !d->text.tied)
        TRY(tied_by_4(source, &drops_head));
    if (same && !dtype && !drops_head)
        return hf_copy_file(source, folder, "config.json");
    TRY(same ? read_text(source, &text) : dims_config_json(d, &text));
    status st =
        write_changed(folder, text, &(changes){.dtype = dtype, .tie = drops_head ? "false" : NULL});
    free(text);
    return st;
}
