/* SPDX-License-Identifier: Apache-2.0 */
/* seal.c: the manifest that makes a checkpoint whole (folder_seal and folder_check of folder.h). It
 * is written last, and checked before anything in the checkpoint is trusted:
 *
 * {"version":1,"files":[{"name":NAME,"bytes":SIZE,"digest":DIGEST}, ..],"seal":DIGEST}
 *
 * The seal is the digest of the list itself, so an edited manifest is noticed too. Files are listed
 * in alphabetical order, and hidden ones are left out. */

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json/json.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/folder.h"

static const char manifest_name[] = "manifest.json";
enum { MANIFEST_VERSION = 1 };

static void add_to_seal(hasher *hash, const char *name, int64_t bytes, const char *digest)
{
    hasher_add_text(hash, name);
    hasher_add_u64(hash, (uint64_t)bytes);
    hasher_add(hash, digest, strlen(digest));
}

/* A manifest under construction. */
typedef struct sealing {
    json_writer writer;
    hasher *hash;              /* of the list */
    const folder_known *known; /* [count] */
    int count;
} sealing;

static status digest_of(const sealing *state, const char *path, const char *name, hash128 *out)
{
    for (int i = 0; i < state->count; i++)
        if (strcmp(state->known[i].name, name) == 0) {
            *out = state->known[i].digest;
            return ST_OK;
        }
    return hash_file(path, out);
}

static status put_file(sealing *state, const char *path, const char *name)
{
    json_writer *const writer = &state->writer;
    struct stat about;
    hash128 digest;
    char text[HASH_TEXT];
    if (stat(path, &about) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    TRY(digest_of(state, path, name, &digest));
    hash_print(digest, text);
    add_to_seal(state->hash, name, (int64_t)about.st_size, text);
    json_begin_object(writer);
    json_put_key_cstr(writer, "name", name);
    json_put_key_int(writer, "bytes", (int64_t)about.st_size);
    json_put_key_cstr(writer, "digest", text);
    json_end_object(writer);
    return ST_OK;
}

/* Adds the files of base/inner and of its folders, by their names relative to base. */
static status put_files(sealing *state, const char *base, const char *inner)
{
    char here[STATUS_PATH_MAX];
    struct dirent **list;
    if (*inner)
        TRY(hf_path(here, base, inner));
    else
        snprintf(here, sizeof here, "%s", base);
    int count =
        scandir(here, &list, NULL, alphasort); /* sorted: the same files give the same seal */
    if (count < 0)
        return FAIL_IN(ST_IO, here, "%s", strerror(errno));
    status st = ST_OK;
    for (int i = 0; i < count; i++) {
        const char *name = list[i]->d_name;
        char path[STATUS_PATH_MAX], below[STATUS_PATH_MAX];
        struct stat about;
        snprintf(below, sizeof below, "%s%s%s", inner, *inner ? "/" : "", name);
        if (st == ST_OK && name[0] != '.' && strcmp(name, manifest_name) != 0) {
            st = hf_path(path, base, below);
            if (st == ST_OK && stat(path, &about) == 0 && S_ISDIR(about.st_mode))
                st = put_files(state, base, below);
            else if (st == ST_OK)
                st = put_file(state, path, below);
        }
        free(list[i]);
    }
    free(list);
    return st;
}

status folder_seal(const char *path, const folder_known *known, int count)
{
    char text[HASH_TEXT], training[STATUS_PATH_MAX], *json = NULL;
    size_t size;
    sealing state = {.known = known, .count = count};
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(hasher_new(&state.hash));
    json_writer_init(&state.writer);
    json_begin_object(&state.writer);
    json_put_key_int(&state.writer, "version", MANIFEST_VERSION);
    json_begin_key_array(&state.writer, "files");
    status st = put_files(&state, path, "");
    json_end_array(&state.writer);
    hash_print(hasher_value(state.hash), text);
    json_put_key_cstr(&state.writer, "seal", text);
    json_end_object(&state.writer);
    if (st == ST_OK)
        st = json_writer_take(&state.writer, &json, &size);
    if (st == ST_OK)
        st = hf_write_text(training, manifest_name, json,
                           size); /* synced together with its folder */
    free(json);
    json_writer_done(&state.writer);
    hasher_free(&state.hash);
    return st;
}

/* Checks that the bytes of a file are those of the manifest. */
static status check_bytes(const char *path, int64_t bytes, const char *wanted)
{
    char found[HASH_TEXT];
    struct stat about;
    hash128 digest;
    if (stat(path, &about) != 0)
        return FAIL_IN(ST_BAD_INPUT, path, "this file of the checkpoint is missing");
    if ((int64_t)about.st_size != bytes)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "the file has %lld bytes, but had %lld when the checkpoint was made",
                       (long long)about.st_size, (long long)bytes);
    TRY(hash_file(path, &digest));
    hash_print(digest, found);
    return strcmp(found, wanted) == 0
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, path, "its bytes changed after the checkpoint was made");
}

/* Checks one entry of the manifest and adds it to the seal. mine: this rank also reads the file. */
static status check_file(const json_value *entry, const char *base, const char *manifest, bool mine,
                         hasher *hash)
{
    const char *name, *wanted;
    int64_t bytes;
    char path[STATUS_PATH_MAX];
    TRY(json_want_text(entry, "name", manifest, &name));
    TRY(json_want_text(entry, "digest", manifest, &wanted));
    TRY(json_want_int(entry, "bytes", manifest, &bytes));
    if (name[0] == '/' || strstr(name, ".."))
        return FAIL_IN(ST_BAD_INPUT, manifest, "it names \"%s\", which is not in this checkpoint",
                       name);
    TRY(hf_path(path, base, name));
    if (mine)
        TRY(check_bytes(path, bytes, wanted));
    add_to_seal(hash, name, bytes, wanted);
    return ST_OK;
}

status folder_check(const char *path, int rank, int ranks)
{
    char manifest[STATUS_PATH_MAX], training[STATUS_PATH_MAX], text[HASH_TEXT];
    const char *seal;
    int64_t version;
    json_value *value = NULL;
    const json_value *files;
    hasher *hash = NULL;
    status st;
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(hf_path(manifest, training, manifest_name));
    TRY(json_load(manifest, &value));
    TRY_OR(done, json_want_int(value, "version", manifest, &version));
    if (version != MANIFEST_VERSION) {
        st = FAIL_IN(ST_BAD_INPUT, manifest,
                     "the file has version %lld, but this trainer reads version %d",
                     (long long)version, MANIFEST_VERSION);
        goto done;
    }
    TRY_OR(done, json_want_array(value, "files", manifest, &files));
    TRY_OR(done, json_want_text(value, "seal", manifest, &seal));
    TRY_OR(done, hasher_new(&hash));
    for (size_t i = 0; i < json_count(files); i++)
        TRY_OR(done, check_file(json_item(files, i), path, manifest,
                                i % (size_t)ranks == (size_t)rank, hash));
    hash_print(hasher_value(hash), text);
    if (strcmp(text, seal) != 0)
        st = FAIL_IN(ST_BAD_INPUT, manifest, "its list of files was changed");
done:
    hasher_free(&hash);
    json_free(&value);
    return st;
}
