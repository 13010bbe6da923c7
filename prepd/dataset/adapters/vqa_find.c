/* SPDX-License-Identifier: Apache-2.0 */
/* vqa_find.c: looks for questions, annotations and pictures in the folders, and inside the zip
 * files, in which people keep them. Of several files that could be meant, the one whose name fits
 * data.split best is taken. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "prepd/dataset/adapters/vqa.h"
#include "prepd/dataset/zip.h"

/* Where the two JSON files may lie below data.path: side by side, as the archives unpack, or in
 * folders. */
static const char *const question_folders[] = {"", "Questions/", "questions/"};
static const char *const annotation_folders[] = {"", "Annotations/", "annotations/"};
enum { N_FOLDERS = 3 };

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* How well a file name fits the split: 0 not at all; 1 if the split begins a word ("test" in
 * "test-dev2015"); 2 if it has a year after it ("train2014"); 3 if it is a word of its own. That
 * word, up to the next underscore or dot, is written to `subtype`. */
static int match_split(const char *name, const char *split, char subtype[VQA_NAME_MAX])
{
    int best = 0;
    size_t length = strlen(split);
    for (const char *at = name; length && (at = strstr(at, split)); at++) {
        if (at != name && at[-1] != '_')
            continue;
        size_t word = strcspn(at, "_.");
        size_t digits = strspn(at + length, "0123456789");
        int grade = word == length ? 3 : length + digits == word ? 2 : 1;
        if (grade <= best || word >= VQA_NAME_MAX)
            continue;
        best = grade;
        memcpy(subtype, at, word);
        subtype[word] = 0;
    }
    return best;
}

typedef bool (*name_test)(const char *name);

/* Names that begin with a dot do not count: macOS puts a ._NAME beside each file. */
static bool is_questions(const char *name)
{
    return name[0] != '.' && strstr(name, "OpenEnded") && ends_with(name, "questions.json");
}

static bool is_annotations(const char *name)
{
    return name[0] != '.' && ends_with(name, "annotations.json");
}

/* Adds the split of a file of questions or annotations to the list of splits in an error. It is
 * what is left of the file's name without the words of the pattern and without a year. */
static void name_split(const char *name, char *list, size_t size)
{
    char word[VQA_NAME_MAX];
    for (const char *at = name; *at;) {
        size_t count = strcspn(at, "_");
        if (count < sizeof word) {
            memcpy(word, at, count);
            word[count] = 0;
            bool fixed = strcmp(word, "v2") == 0 || strcmp(word, "OpenEnded") == 0 ||
                         strcmp(word, "mscoco") == 0 || ends_with(word, "questions.json") ||
                         ends_with(word, "annotations.json");
            while (count && isdigit((unsigned char)word[count - 1]))
                word[--count] = 0;
            size_t used = strlen(list);
            if (!fixed && word[0] && !strstr(list, word) && used + count + 3 < size)
                snprintf(list + used, size - used, "%s%s", used ? ", " : "", word);
        }
        at += strcspn(at, "_");
        at += *at == '_';
    }
}

/* Finds the file of one kind that fits best. ST_CONFIG if two fit equally well. */
static status find_file(const char *base, const char *const *folders, name_test test,
                        const char *split, const char *pattern, char out[VQA_PATH_MAX],
                        char subtype[VQA_NAME_MAX])
{
    int best = 0;
    bool tie = false;
    char splits[512] = "", rival[VQA_NAME_MAX] = "";
    out[0] = 0;
    for (int k = 0; k < N_FOLDERS; k++) {
        char folder[VQA_PATH_MAX];
        snprintf(folder, sizeof folder, "%s/%s", base, folders[k]);
        DIR *dir = opendir(folder);
        if (!dir) {
            if (k == 0)
                return FAIL_IN(ST_NO_INPUT, base, "data.path cannot be read as a folder: %s",
                               strerror(errno));
            continue;
        }
        struct dirent *entry;
        while ((entry = readdir(dir))) {
            char word[VQA_NAME_MAX] = "";
            if (!test(entry->d_name))
                continue;
            name_split(entry->d_name, splits, sizeof splits);
            int grade = match_split(entry->d_name, split, word);
            if (grade == 0 || grade < best)
                continue;
            tie = grade == best;
            if (tie) {
                snprintf(rival, sizeof rival, "%s", entry->d_name);
                continue;
            }
            best = grade;
            snprintf(subtype, VQA_NAME_MAX, "%s", word);
            if (snprintf(out, VQA_PATH_MAX, "%s%s", folder, entry->d_name) >= VQA_PATH_MAX)
                out[0] = 0;
        }
        closedir(dir);
    }
    if (tie)
        return FAIL_IN(ST_CONFIG, out,
                       "this file and %s both fit data.split %s: write the split in full", rival,
                       split);
    if (!out[0] && splits[0])
        return FAIL_IN(ST_NO_INPUT, base,
                       "data.split %s: there is no file named %s here; the splits found are: %s",
                       split, pattern, splits);
    if (!out[0])
        return FAIL_IN(
            ST_NO_INPUT, base,
            "there is no file named %s here or in %s (VQAv2's official names, data.split %s)",
            pattern, folders[1], split);
    return ST_OK;
}

typedef struct member_search {
    name_test test;
    const char *split;
    int best;  /* how well the best member so far fits (match_split) */
    int here;  /* the same, of the zip file that is being read alone */
    int alike; /* how many members of that zip file fit equally well */
    char member[VQA_NAME_MAX], subtype[VQA_NAME_MAX];
} member_search;

static status on_member(void *user, const zip_member *member)
{
    member_search *search = (member_search *)user;
    const char *slash = strrchr(member->name, '/'), *name = slash ? slash + 1 : member->name;
    char word[VQA_NAME_MAX] = "";
    if (strlen(member->name) >= VQA_NAME_MAX || !search->test(name))
        return ST_OK;
    const int grade = match_split(name, search->split, word);
    if (grade > 0)
        search->alike = grade == search->here  ? search->alike + 1
                        : grade > search->here ? 1
                                               : search->alike;
    search->here = grade > search->here ? grade : search->here;
    if (grade <= search->best)
        return ST_OK;
    search->best = grade;
    snprintf(search->member, sizeof search->member, "%s", member->name);
    snprintf(search->subtype, sizeof search->subtype, "%s", word);
    return ST_OK;
}

/* Finds the member that fits best inside the zip files whose names hold the word, as they are
 * downloaded: v2_Questions_Train_mscoco.zip. Leaves `out` as it is if there is none; ST_CONFIG if
 * two fit equally well. */
static status find_in_zips(const char *base, const char *word, member_search *search,
                           char out[VQA_PATH_MAX])
{
    status st = ST_OK;
    char rival[VQA_NAME_MAX] = "";
    DIR *dir = opendir(base);
    struct dirent *entry;
    if (!dir)
        return ST_OK;
    while (st == ST_OK && (entry = readdir(dir))) {
        char path[VQA_PATH_MAX + VQA_NAME_MAX];
        const int best = search->best;
        search->here = search->alike = 0;
        if (!ends_with(entry->d_name, ".zip") || !strstr(entry->d_name, word))
            continue;
        snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
        st = zip_read(path, on_member, search);
        if (st == ST_OK && search->best > best && strlen(path) < VQA_PATH_MAX)
            memcpy(out, path, strlen(path) + 1);
        if (search->here > best)
            snprintf(rival, sizeof rival, "%s", search->alike > 1 ? "another member of it" : "");
        else if (best > 0 && search->here == best)
            snprintf(rival, sizeof rival, "%s", entry->d_name);
    }
    closedir(dir);
    if (st == ST_OK && rival[0])
        return FAIL_IN(ST_CONFIG, out,
                       "this file and %s both fit data.split %s: keep only one of them here", rival,
                       search->split);
    return st;
}

/* Finds a file that lies in a folder, or else one inside a zip file. */
static status find_packed(const conf *options, const char *const *folders, name_test test,
                          const char *word, const char *pattern, char out[VQA_PATH_MAX],
                          char member[VQA_NAME_MAX], char subtype[VQA_NAME_MAX])
{
    member_search search = {.test = test, .split = options->data_split};
    status st =
        find_file(options->data_path, folders, test, options->data_split, pattern, out, subtype);
    if (st != ST_NO_INPUT)
        return st;
    const status_note note = *status_last();
    TRY(find_in_zips(options->data_path, word, &search, out));
    if (search.best == 0) {
        status_set(&note);
        return ST_NO_INPUT;
    }
    memcpy(member, search.member, sizeof search.member);
    memcpy(subtype, search.subtype, sizeof search.subtype);
    return ST_OK;
}

static const char *picture_root(const conf *options)
{
    return options->data_images[0] ? options->data_images : options->data_path;
}

status vqa_find_files(const conf *options, vqa_paths *out)
{
    char pattern[VQA_NAME_MAX], ignored[VQA_NAME_MAX];
    memset(out, 0, sizeof *out);
    if (!options->data_split[0])
        return FAIL(ST_CONFIG, "data.split is empty: set it to train, val, ...");
    snprintf(pattern, sizeof pattern, "*OpenEnded*_%s*questions.json", options->data_split);
    TRY(find_packed(options, question_folders, is_questions, "Questions", pattern, out->questions,
                    out->question_member, out->subtype));
    snprintf(pattern, sizeof pattern, "*%s*annotations.json", options->data_split);
    /* Annotations of the same year as the questions are preferred;
     * else the split alone must fit. */
    if (find_file(options->data_path, annotation_folders, is_annotations, out->subtype, pattern,
                  out->annotations, ignored) != ST_OK)
        TRY(find_packed(options, annotation_folders, is_annotations, "Annotations", pattern,
                        out->annotations, out->annotation_member, ignored));
    if (snprintf(out->images_json, sizeof out->images_json, "%s/images.json", options->data_path) >=
        VQA_PATH_MAX)
        return FAIL_IN(ST_CONFIG, options->data_path, "data.path is too long");
    if (strlen(picture_root(options)) >= sizeof out->root)
        return FAIL_IN(ST_CONFIG, options->data_images, "data.images is too long");
    if (access(out->images_json, F_OK) != 0)
        out->images_json[0] = 0;
    return ST_OK;
}

/* Whether the folder holds a picture that has the official name of this subtype. */
static bool has_pictures(const char *folder, const char *subtype)
{
    char prefix[VQA_NAME_MAX + 8];
    bool found = false;
    DIR *dir = opendir(folder);
    if (!dir)
        return false;
    snprintf(prefix, sizeof prefix, "COCO_%s_", subtype);
    struct dirent *entry;
    while (!found && (entry = readdir(dir)))
        found = strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return found;
}

/* Looks for train2014.zip beside the JSON files or in images/. */
static bool find_picture_zip(const conf *options, const char *subtype, vqa_paths *paths)
{
    static const char *const folders[] = {"", "images/", "Images/"};
    for (int k = 0; k < N_FOLDERS; k++) {
        char name[VQA_NAME_MAX + 16], path[2 * VQA_PATH_MAX];
        snprintf(name, sizeof name, "%s%s.zip", folders[k], subtype);
        snprintf(path, sizeof path, "%s/%s", picture_root(options), name);
        if (strlen(name) < VQA_NAME_MAX && access(path, F_OK) == 0) {
            memcpy(paths->picture_zip, name, strlen(name) + 1);
            return true;
        }
    }
    return false;
}

status vqa_find_pictures(const conf *options, vqa_paths *paths)
{
    static const char *const layouts[] = {
        "images/%s/", "Images/mscoco/%s/", "Images/%s/", "%s/", "images/", "Images/", "",
    };
    enum { N_LAYOUTS = sizeof layouts / sizeof *layouts, N_NAMED = 4 /* the first ones have %s */ };
    char subtypes[3][VQA_NAME_MAX], looked[2048] = "", path[2 * VQA_PATH_MAX];
    char fallback[VQA_NAME_MAX] = "";
    snprintf(subtypes[0], VQA_NAME_MAX, "%s", paths->subtype);
    snprintf(subtypes[1], VQA_NAME_MAX, "%.200s2014", options->data_split);
    snprintf(subtypes[2], VQA_NAME_MAX, "%.200s2015", options->data_split);
    snprintf(paths->root, sizeof paths->root, "%s", picture_root(options));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < N_LAYOUTS; k++) {
            char folder[2 * VQA_NAME_MAX];
            const char *subtype = subtypes[i];
            const char *cut = strstr(layouts[k], "%s");
            if (cut)
                snprintf(folder, sizeof folder, "%.*s%s%s", (int)(cut - layouts[k]), layouts[k],
                         subtype, cut + 2);
            else
                snprintf(folder, sizeof folder, "%s", layouts[k]);
            if (strlen(folder) >= VQA_NAME_MAX)
                continue;
            snprintf(path, sizeof path, "%s/%s", paths->root, folder);
            size_t used = strlen(looked);
            if (i == 0)
                snprintf(looked + used, sizeof looked - used, "%s%sCOCO_%s_*.jpg", used ? ", " : "",
                         folder, subtype);
            if (has_pictures(path, subtype)) {
                memcpy(paths->image_folder, folder, strlen(folder) + 1);
                memcpy(paths->subtype, subtype, strlen(subtype) + 1);
                return ST_OK;
            }
            if (k < N_NAMED && !fallback[0] && file_is_folder(path))
                memcpy(fallback, folder, strlen(folder) + 1);
        }
    }
    for (int i = 0; i < 3; i++)
        if (find_picture_zip(options, subtypes[i], paths)) {
            memcpy(paths->subtype, subtypes[i], strlen(subtypes[i]) + 1);
            return ST_OK;
        }
    /* A folder of the right name that holds no such picture: the index will report each one as
     * missing. */
    if (fallback[0]) {
        memcpy(paths->image_folder, fallback, strlen(fallback) + 1);
        return ST_OK;
    }
    return FAIL_IN(
        ST_NO_INPUT, paths->root,
        "there are no pictures here; looked for %s, %s.zip; data.images can name another folder",
        looked, paths->subtype);
}

/* The folder that a note names: its last word that ends in a slash. */
static void note_folder(const char *note, char out[VQA_NAME_MAX])
{
    out[0] = 0;
    for (const char *at = note; *at;) {
        size_t count = strcspn(at, " ");
        if (count > 1 && count < VQA_NAME_MAX && at[count - 1] == '/') {
            memcpy(out, at, count);
            out[count] = 0;
        }
        at += count;
        at += *at == ' ';
    }
}

/* Writes the path with all links resolved to `out`. False if there is no such path or it is too
 * long. */
static bool without_links(const char *path, char out[VQA_PATH_MAX])
{
    char *whole = realpath(path, NULL);
    const bool fits = whole && strlen(whole) < VQA_PATH_MAX;
    if (fits)
        memcpy(out, whole, strlen(whole) + 1);
    free(whole);
    return fits;
}

status vqa_find_listed(const conf *options, const char *note, const char *first, vqa_paths *paths)
{
    char named[VQA_NAME_MAX], path[3 * VQA_PATH_MAX];
    char candidates[6][2 * VQA_NAME_MAX];
    const char *root = picture_root(options);
    int count = 0;
    note_folder(note, named);
    if (named[0]) {
        snprintf(candidates[count++], sizeof *candidates, "%s", named);
        snprintf(candidates[count++], sizeof *candidates, "../%s", named);
    }
    snprintf(candidates[count++], sizeof *candidates, "images/");
    snprintf(candidates[count++], sizeof *candidates, "%s", "");
    snprintf(candidates[count++], sizeof *candidates, "images/%s/", paths->subtype);
    snprintf(candidates[count++], sizeof *candidates, "../images/");
    /* The first folder that holds the picture; if none does, the first folder that exists. */
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < count; k++) {
            snprintf(path, sizeof path, "%s/%s%s", root, candidates[k], pass ? "" : first);
            if (pass ? !file_is_folder(path) : access(path, F_OK) != 0)
                continue;
            snprintf(path, sizeof path, "%s/%s", root, candidates[k]);
            if (without_links(root, paths->holder) && without_links(path, paths->root))
                return ST_OK;
        }
    return FAIL_IN(ST_NO_INPUT, root, "the folder cannot be resolved: %s", strerror(errno));
}
