/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_load.c: makes a tokenizer from a tokenizer.json. A setting that would change the ids
 * and is not implemented is refused by its name. Settings that cannot change them (truncation,
 * padding, the trimming of offsets) are ignored. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/tokenizer/tokenizer_impl.h"
#include "common/tokenizer/tokenizer_text.h"

/* bytes; published files have about 11 million */
enum { FILE_MAX = 512 * 1024 * 1024 };

/* ---- the document ---- */

static status read_file(const char *file, char **out, size_t *out_size)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT || errno == ENOTDIR ? ST_NO_INPUT : ST_IO, file,
                       "cannot be opened: %s", strerror(errno));
    struct stat info;
    status st = ST_OK;
    char *text = NULL;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_size > FILE_MAX) {
        st = FAIL_IN(ST_BAD_INPUT, file, "is not a regular file of at most %d bytes", FILE_MAX);
        goto done;
    }
    text = malloc((size_t)info.st_size + 1);
    if (!text) {
        st = FAIL_IN(ST_NO_MEMORY, file, "no memory for %lld bytes", (long long)info.st_size);
        goto done;
    }
    const int64_t got = file_read_all(fd, text, (size_t)info.st_size, 0);
    if (got != info.st_size) {
        st = FAIL_IN(ST_IO, file, "cannot be read: %s",
                     got < 0 ? strerror(errno) : "the file became shorter while it was read");
        goto done;
    }
    text[got] = 0;
    *out = text;
    *out_size = (size_t)got;
    text = NULL;
done:
    free(text);
    close(fd);
    return st;
}

static status type_of(const loading *state, const json_value *object, const char *at,
                      const char **out)
{
    const json_value *value;
    if (json_typeof(object) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s is %s, expected an object", at,
                       json_type_name(json_typeof(object)));
    TRY(loading_required(state, object, at, "type", JSON_TEXT, &value));
    *out = json_text(value, "");
    return ST_OK;
}

/* ---- added tokens ---- */

static status load_added(loading *state, const json_value *added)
{
    static const char *const off[] = {"lstrip", "rstrip", "single_word"};
    nfc_scratch scratch = {0};
    mapped_text composed = {0};
    status st = ST_OK;
    for (size_t i = 0; i < json_count(added); i++) {
        char at[64];
        snprintf(at, sizeof at, "added_tokens[%zu]", i);
        const json_value *item = json_item(added, i), *content, *special, *normalized;
        TRY_OR(done, loading_required(state, item, at, "content", JSON_TEXT, &content));
        TRY_OR(done, loading_optional(state, item, at, "special", JSON_BOOL, &special));
        TRY_OR(done, loading_optional(state, item, at, "normalized", JSON_BOOL, &normalized));
        for (size_t k = 0; k < sizeof off / sizeof *off; k++)
            TRY_OR(done, loading_must_be_off(state, item, at, off[k]));
        const uint8_t *text = (const uint8_t *)json_text(content, "");
        size_t size = json_text_size(content);
        int32_t id = (int32_t)json_int(json_find(item, "id"), 0);
        if (!size) {
            st = FAIL_IN(ST_BAD_INPUT, state->file, "%s.content is empty", at);
            goto done;
        }
        if (state->vocabulary->tokens[id].kind > TOKEN_BASE) {
            st = FAIL_IN(ST_BAD_INPUT, state->file, "%s repeats id %d", at, id);
            goto done;
        }
        TRY_OR(done, loading_put_text(state, id, text, size,
                                      special && json_bool(special, false) ? TOKEN_SPECIAL
                                                                           : TOKEN_ADDED));
        /* If "normalized" is absent, it is true for tokens that are not special. */
        bool in_normalised =
            normalized ? json_bool(normalized, false) : !(special && json_bool(special, false));
        if (in_normalised && state->vocabulary->nfc) {
            TRY_OR(done, nfc_normalise(text, size, &scratch, &composed));
            text = composed.bytes;
            size = composed.size;
        }
        TRY_OR(done, added_set_put(in_normalised ? &state->vocabulary->normalised
                                                 : &state->vocabulary->raw,
                                   text, size, id));
    }
    added_set_seal(&state->vocabulary->raw);
    added_set_seal(&state->vocabulary->normalised);
done:
    nfc_scratch_done(&scratch);
    mapped_text_done(&composed);
    return st;
}

/* ---- the steps around the model ---- */

static status load_normalizer(loading *state, const json_value *root)
{
    const json_value *value = json_find(root, "normalizer");
    const char *type;
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    TRY(type_of(state, value, "normalizer", &type));
    if (strcmp(type, "NFC"))
        return FAIL_IN(ST_BAD_INPUT, state->file,
                       "normalizer.type is \"%.64s\", expected NFC or null", type);
    state->vocabulary->nfc = true;
    return ST_OK;
}

static status load_split(loading *state, const json_value *split)
{
    const char *at = "pre_tokenizer.pretokenizers[0]", *type;
    const json_value *pattern, *expression, *behavior;
    TRY(type_of(state, split, at, &type));
    if (strcmp(type, "Split"))
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s.type is \"%.64s\", expected Split", at, type);
    TRY(loading_required(state, split, at, "pattern", JSON_OBJECT, &pattern));
    TRY(loading_required(state, pattern, "pre_tokenizer.pretokenizers[0].pattern", "Regex",
                         JSON_TEXT, &expression));
    TRY(loading_required(state, split, at, "behavior", JSON_TEXT, &behavior));
    if (strcmp(json_text(behavior, ""), "Isolated"))
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s.behavior is \"%.64s\", expected Isolated", at,
                       json_text(behavior, ""));
    TRY(loading_must_be_off(state, split, at, "invert"));
    return splitter_new(json_text(expression, ""), json_text_size(expression), state->file,
                        &state->vocabulary->split);
}

static status load_pre_tokenizer(loading *state, const json_value *root)
{
    const char *wanted = "expected a Sequence of Split by an expression and ByteLevel";
    const json_value *value, *steps;
    const char *type;
    TRY(loading_required(state, root, "", "pre_tokenizer", JSON_OBJECT, &value));
    TRY(type_of(state, value, "pre_tokenizer", &type));
    if (strcmp(type, "Sequence"))
        return FAIL_IN(ST_BAD_INPUT, state->file, "pre_tokenizer.type is \"%.64s\", %s", type,
                       wanted);
    TRY(loading_required(state, value, "pre_tokenizer", "pretokenizers", JSON_ARRAY, &steps));
    if (json_count(steps) != 2)
        return FAIL_IN(ST_BAD_INPUT, state->file, "pre_tokenizer.pretokenizers has %zu items, %s",
                       json_count(steps), wanted);
    TRY(load_split(state, json_item(steps, 0)));
    const json_value *bytes = json_item(steps, 1);
    const char *at = "pre_tokenizer.pretokenizers[1]";
    TRY(type_of(state, bytes, at, &type));
    if (strcmp(type, "ByteLevel"))
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s.type is \"%.64s\", expected ByteLevel", at,
                       type);
    TRY(loading_must_be_off(state, bytes, at, "add_prefix_space"));
    return loading_must_be_off(state, bytes, at, "use_regex");
}

/* Checks post_processor or decoder: it must be ByteLevel or absent. */
static status check_step(const loading *state, const json_value *root, const char *key)
{
    const json_value *value = json_find(root, key);
    const char *type;
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    TRY(type_of(state, value, key, &type));
    if (strcmp(type, "ByteLevel"))
        return FAIL_IN(ST_BAD_INPUT, state->file,
                       "%s.type is \"%.64s\", expected ByteLevel or null", key, type);
    return ST_OK;
}

static status load_document(loading *state)
{
    const json_value *added;
    const json_value *root = state->document;
    if (json_typeof(root) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, state->file, "is %s, expected an object",
                       json_type_name(json_typeof(root)));
    TRY(loading_optional(state, root, "", "added_tokens", JSON_ARRAY, &added));
    for (size_t i = 0; added && i < json_count(added); i++)
        if (json_typeof(json_item(added, i)) != JSON_OBJECT)
            return FAIL_IN(ST_BAD_INPUT, state->file, "added_tokens[%zu] is %s, expected an object",
                           i, json_type_name(json_typeof(json_item(added, i))));
    TRY(load_normalizer(state, root));
    TRY(load_pre_tokenizer(state, root));
    TRY(check_step(state, root, "post_processor"));
    TRY(check_step(state, root, "decoder"));
    TRY(loading_model(state, root, added));
    return added ? load_added(state, added) : ST_OK;
}

status tokenizer_parse(const char *text, size_t size, const char *source, tokenizer **out)
{
    status st;
    loading state = {.file = source, .vocabulary = calloc(1, sizeof *state.vocabulary)};
    if (!state.vocabulary)
        return FAIL(ST_NO_MEMORY, "no memory for a tokenizer");
    byte_symbols(state.to_byte);
    state.vocabulary->digest = hash_bytes(text, size);
    TRY_OR(done, json_parse(text, size, source, &state.document));
    TRY_OR(done, load_document(&state));
    *out = state.vocabulary;
    state.vocabulary = NULL;
done:
    tokenizer_free(&state.vocabulary);
    json_free(&state.document);
    free(state.symbols);
    return st;
}

status tokenizer_load(const char *folder, tokenizer **out)
{
    char *file, *text = NULL;
    size_t size = 0;
    status st;
    if (asprintf(&file, "%s/tokenizer.json", folder) < 0)
        return FAIL(ST_NO_MEMORY, "no memory for a path");
    TRY_OR(done, read_file(file, &text, &size));
    st = tokenizer_parse(text, size, file, out);
done:
    free(text);
    free(file);
    return st;
}
