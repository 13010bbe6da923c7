/* base_file.c: base.json (base.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json/json.h"
#include "trainer/checkpoint/base.h"
#include "trainer/checkpoint/hf_write.h"

static const char base_name[] = "base.json";
enum { BASE_VERSION = 1 };

static void put_lora(json_writer *writer, const run_base *base)
{
    if (base->lora.rank == 0) {
        json_put_key_null(writer, "lora");
        return;
    }
    json_begin_key_object(writer, "lora");
    json_put_key_int(writer, "rank", base->lora.rank);
    json_put_key_real(writer, "alpha", base->lora.alpha);
    json_put_key_bool(writer, "rslora", base->lora.rslora);
    json_put_key_bool(writer, "dora", base->lora.dora);
    json_put_key_cstr(writer, "targets", base->lora_targets);
    json_put_key_cstr(writer, "base", base_form_name(base->form));
    json_end_object(writer);
}

status base_write(const run_base *base, const char *folder)
{
    json_writer writer;
    char *text = NULL, digest[HASH_TEXT];
    size_t size;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", BASE_VERSION);
    json_put_key_cstr(&writer, "model", base->model);
    if (base->drawn)
        json_put_key_int(&writer, "drawn_from_seed", base->seed);
    else
        json_put_key_null(&writer, "drawn_from_seed");
    put_lora(&writer, base);
    json_begin_key_object(&writer, "frozen");
    for (int64_t i = 0; i < base->count; i++) {
        hash_print(base->rows[i].digest, digest);
        json_put_key_cstr(&writer, base->rows[i].name, digest);
    }
    json_end_object(&writer);
    json_end_object(&writer);
    status st = json_writer_take(&writer, &text, &size);
    if (st == ST_OK)
        st = hf_write_text(folder, base_name, text, size);
    free(text);
    json_writer_done(&writer);
    return st;
}

static status read_rows(const json_value *frozen, const char *path, run_base *base)
{
    const size_t count = json_count(frozen);
    base->rows = calloc(count + 1, sizeof *base->rows);
    if (!base->rows)
        return FAIL(ST_NO_MEMORY, "no memory for %zu digests", count);
    for (size_t i = 0; i < count; i++) {
        const char *name;
        const char *digest = json_text(json_member(frozen, i, &name), "");
        base_row *row = &base->rows[base->count++];
        snprintf(row->name, sizeof row->name, "%s", name);
        if (!hash_parse(digest, &row->digest))
            return FAIL_IN(ST_BAD_INPUT, path, "frozen.%s is no digest: \"%s\"", name, digest);
    }
    return ST_OK;
}

static status read_form(const json_value *lora, const char *path, weight_form *out)
{
    const char *text = json_text(json_find(lora, "base"), base_form_name(WEIGHT_PLAIN));
    for (int i = WEIGHT_PLAIN; i <= WEIGHT_NF4; i++) {
        *out = (weight_form)i;
        if (strcmp(text, base_form_name(*out)) == 0)
            return ST_OK;
    }
    return FAIL_IN(ST_BAD_INPUT, path, "lora.base is \"%s\", which this trainer does not know",
                   text);
}

static status read_members(const json_value *value, const char *path, run_base *base)
{
    const json_value *seed = json_given(value, "drawn_from_seed"),
                     *lora = json_given(value, "lora");
    const char *model, *targets;
    int64_t version;
    TRY(json_want_int(value, "version", path, &version));
    if (version != BASE_VERSION)
        return FAIL_IN(ST_BAD_INPUT, path, "its version is %" PRId64 ", and this trainer reads %d",
                       version, BASE_VERSION);
    TRY(json_want_text(value, "model", path, &model));
    snprintf(base->model, sizeof base->model, "%s", model);
    base->drawn = seed != NULL;
    base->seed = json_int(seed, 0);
    if (lora) {
        lora_kind kind = {.rslora = json_bool(json_find(lora, "rslora"), false),
                          .dora = json_bool(json_find(lora, "dora"), false)};
        TRY(json_want_int(lora, "rank", path, &kind.rank));
        TRY(json_want_real(lora, "alpha", path, &kind.alpha));
        TRY(json_want_text(lora, "targets", path, &targets));
        TRY(base_note_lora(base, kind, targets));
        TRY(read_form(lora, path, &base->form));
    }
    return read_rows(json_find(value, "frozen"), path, base);
}

status base_read(const char *folder, run_base *out, bool *out_there)
{
    char path[STATUS_PATH_MAX];
    json_value *value = NULL;
    run_base base = {0};
    TRY(hf_path(path, folder, base_name));
    *out_there = access(path, F_OK) == 0;
    if (!*out_there)
        return ST_OK;
    TRY(json_load(path, &value));
    status st = read_members(value, path, &base);
    json_free(&value);
    if (st == ST_OK)
        *out = base;
    else
        base_done(&base);
    return st;
}
