/* SPDX-License-Identifier: Apache-2.0 */
/* model_cache.c: see model_cache.h. */
#include "common/base/model_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"

enum { COMMIT_MAX = 128 };

static const char word_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                   "-_.";

bool model_cache_is_name(const char *name)
{
    size_t org = strspn(name, word_letters);
    if (org == 0 || name[0] == '.' || name[org] != '/')
        return false;
    const char *model = name + org + 1;
    return model[0] && model[0] != '.' && !model[strspn(model, word_letters)];
}

/* Writes `first`, with a leading "~" replaced by the home folder, followed by `rest`. False if
 * first is NULL or empty, there is no home folder, or the path is too long. */
static bool join_path(char out[STATUS_PATH_MAX], const char *first, const char *rest)
{
    const char *home = "";
    if (!first || !first[0])
        return false;
    if (first[0] == '~' && (first[1] == '/' || !first[1])) {
        home = getenv("HOME");
        first++;
        if (!home)
            return false;
    }
    return snprintf(out, STATUS_PATH_MAX, "%s%s%s", home, first, rest) < STATUS_PATH_MAX;
}

static bool find_root(char out[STATUS_PATH_MAX])
{
    return join_path(out, getenv("HF_HUB_CACHE"), "") ||
           join_path(out, getenv("HF_HOME"), "/hub") ||
           join_path(out, getenv("XDG_CACHE_HOME"), "/huggingface/hub") ||
           join_path(out, getenv("HOME"), "/.cache/huggingface/hub");
}

/* Reads the commit, one word, that the file refs/main names. */
static bool read_commit(const char *path, char out[COMMIT_MAX])
{
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t got = fread(out, 1, COMMIT_MAX - 1, file);
    fclose(file);
    out[got] = 0;
    out[strcspn(out, " \t\r\n")] = 0;
    return out[0] && out[0] != '.' && !strchr(out, '/');
}

/* Writes the snapshot's folder to out; on failure (false), the path that is missing. */
static bool find_model(const char *name, char out[STATUS_PATH_MAX])
{
    char root[STATUS_PATH_MAX], at[STATUS_PATH_MAX], commit[COMMIT_MAX];
    if (!find_root(root)) {
        snprintf(out, STATUS_PATH_MAX, "~/.cache/huggingface/hub (HOME is not set)");
        return false;
    }
    const char *model = strchr(name, '/') + 1;
    if (snprintf(at, sizeof at, "%s/models--%.*s--%s", root, (int)(model - 1 - name), name,
                 model) >= (int)sizeof at ||
        !file_is_folder(at)) {
        snprintf(out, STATUS_PATH_MAX, "%s", at);
        return false;
    }
    if (snprintf(out, STATUS_PATH_MAX, "%s/refs/main", at) >= STATUS_PATH_MAX ||
        !read_commit(out, commit))
        return false;
    return snprintf(out, STATUS_PATH_MAX, "%s/snapshots/%s", at, commit) < STATUS_PATH_MAX &&
           file_is_folder(out);
}

bool model_cache_find(const char *name, char out[STATUS_PATH_MAX])
{
    char found[STATUS_PATH_MAX];
    if (!model_cache_is_name(name) || !find_model(name, found))
        return false;
    memcpy(out, found, STATUS_PATH_MAX);
    return true;
}

void model_cache_explain(const char *name, char *out, size_t size)
{
    char tried[STATUS_PATH_MAX];
    if (model_cache_is_name(name) && !find_model(name, tried))
        snprintf(out, size, "in the Hugging Face cache there is no %s", tried);
    else
        snprintf(out, size, "names in the Hugging Face cache have the form Org/Name");
}

void model_cache_title(const char *folder, char out[STATUS_PATH_MAX])
{
    const char *snapshots = strstr(folder, "/snapshots/"), *before = snapshots;
    while (before && before > folder && before[-1] != '/')
        before--;
    if (before && strncmp(before, "models--", 8) == 0) {
        const char *org = before + 8, *model = strstr(org, "--");
        if (model && model < snapshots) {
            snprintf(out, STATUS_PATH_MAX, "%.*s/%.*s", (int)(model - org), org,
                     (int)(snapshots - model - 2), model + 2);
            return;
        }
    }
    const char *slash = strrchr(folder, '/');
    snprintf(out, STATUS_PATH_MAX, "%s", slash && slash[1] ? slash + 1 : folder);
}
