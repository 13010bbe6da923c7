/* hf_config.c: see hf_config.h. */
#include "trainer/checkpoint/hf_config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "trainer/checkpoint/hf_write.h"

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
        return FAIL_IN(ST_IO, path, "can not be read, or is larger than %d bytes", CONFIG_MAX);
    }
    text[n] = 0;
    *out = text;
    return ST_OK;
}

/* The value of a member that begins here, `"key" : "`, up to its closing quote; NULL if none does.
 */
static const char *value_of(const char *at, const char *key, const char **out_end)
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
    const char *end = *at == '"' ? strchr(at + 1, '"') : NULL;
    *out_end = end;
    return end ? at + 1 : NULL;
}

/* text, which is JSON, with other values of "dtype" and "torch_dtype"; all else as it is. */
static status write_with_dtype(const char *folder, const char *text, const char *dtype)
{
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for config.json");
    for (const char *at = text; *at;) {
        const char *end, *value = value_of(at, "dtype", &end);
        if (!value)
            value = value_of(at, "torch_dtype", &end);
        if (!value) {
            fputc(*at++, file);
            continue;
        }
        fprintf(file, "%.*s%s", (int)(value - at), at, dtype);
        at = end;
    }
    bool bad = ferror(file);
    bad = fclose(file) != 0 || bad;
    status st = bad ? FAIL(ST_NO_MEMORY, "no memory for config.json")
                    : hf_write_text(folder, "config.json", out, size);
    free(out);
    return st;
}

status hf_write_config(const model_dims *d, const char *folder, const char *source,
                       const char *dtype)
{
    model_dims from = {0};
    bool same = false;
    char *text = NULL;
    if (source && file_is_folder(source) && dims_load(source, &from) == ST_OK)
        TRY(same_dims(d, &from, &same));
    status_clear(); /* a source that is no model is no fault */
    if (same && !dtype)
        return hf_copy_file(source, folder, "config.json");
    TRY(same ? read_text(source, &text) : dims_config_json(d, &text));
    status st = dtype ? write_with_dtype(folder, text, dtype)
                      : hf_write_text(folder, "config.json", text, strlen(text));
    free(text);
    return st;
}
