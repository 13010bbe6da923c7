/* SPDX-License-Identifier: Apache-2.0 */
/* base.c: makes the base of a run, compares two of them, and reads and writes base.json (base.h).
 * Hashing reads every byte of the frozen tensors once more, at the speed of memory where the files
 * have just been loaded. */
#include "trainer/checkpoint/state/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/json/json.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/parallel/comm/comm.h"

void base_done(run_base *base)
{
    free(base->lora_targets);
    free(base->rows);
    *base = (run_base){0};
}

bool base_has_files(const conf *options)
{
    return options->model_layers == 0 && file_is_folder(options->model_path) &&
           hf_has_weights(options->model_path);
}

bool base_wanted(const params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        if (registry->list[i].frozen && !registry->list[i].adapter)
            return true;
    return false;
}

status base_note_lora(run_base *base, lora_kind kind, const char *targets)
{
    char *copy = strdup(targets);
    if (!copy)
        return FAIL(ST_NO_MEMORY, "no memory for the options of adapters");
    free(base->lora_targets);
    base->lora_targets = copy;
    base->lora = kind;
    return ST_OK;
}

static hash128 digest_drawn(const param *row, int64_t seed)
{
    char text[256];
    const int length = snprintf(text, sizeof text, "%s from seed %" PRId64 ": %d %a", row->name,
                                seed, (int)row->init, row->init_std);
    return hash_bytes(text, (size_t)length);
}

/* The pieces [0, count) are those of one row. */
static hash128 digest_stored(const hf_folder *files, const param_piece *pieces, int64_t count)
{
    hash128 all = {{0}};
    for (int64_t i = 0; i < count; i++) {
        const st_tensor *tensor = hf_folder_find(files, pieces[i].name);
        all = hash_chain(all, hash_bytes(tensor->data.data, tensor->data.size));
        st_forget(tensor->data);
    }
    return all;
}

/* Hashes this rank's share of the rows: every all->size-th one. */
static status hash_files(const params *registry, const char *path, const comm *all, run_base *base)
{
    hf_folder files = {0};
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t count = 0, at = 0;
    TRY(hf_folder_open(path, &files));
    status st;
    TRY_OR(done, hf_check(&files, registry, &report));
    TRY_OR(done, hf_report_status(&report, path));
    TRY_OR(done, params_pieces(registry, report.layout, &pieces, &count));
    for (int64_t i = 0, run; i < count; i += run) {
        for (run = 1; i + run < count && pieces[i + run].weight == pieces[i].weight;)
            run++;
        if (!pieces[i].weight->frozen)
            continue;
        if (at % all->size == all->rank)
            base->rows[at].digest = digest_stored(&files, pieces + i, run);
        at++;
    }
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&files);
    return st;
}

/* Gives every rank the digests of all: row i has been hashed by rank i % size. */
static status share_rows(run_base *base, const comm *all)
{
    if (all->size == 1)
        return ST_OK;
    const size_t bytes = (size_t)base->count * sizeof(base_row);
    base_row *rows = malloc(bytes * (size_t)all->size + 1);
    if (!rows)
        return FAIL(ST_NO_MEMORY, "no memory for the digests of %d ranks", all->size);
    const status st = comm_host_all_gather(all, (comm_at){"hash frozen values", -1}, base->rows,
                                           rows, (int64_t)bytes);
    for (int64_t i = 0; i < base->count && st == ST_OK; i++)
        base->rows[i] = rows[i % all->size * base->count + i];
    free(rows);
    return st;
}

static status list_rows(const params *registry, run_base *base)
{
    base->rows = calloc((size_t)registry->count + 1, sizeof *base->rows);
    if (!base->rows)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " digests", registry->count);
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (!row->frozen || row->adapter)
            continue;
        base_row *to = &base->rows[base->count++];
        snprintf(to->name, sizeof to->name, "%s", row->name);
        to->digest = digest_drawn(row, base->seed);
    }
    return ST_OK;
}

status base_find(const params *registry, const char *files, int64_t seed, const comm *all,
                 run_base *out)
{
    run_base base = {.seed = seed, .drawn = !files};
    status st = list_rows(registry, &base);
    if (st == ST_OK && files) {
        st = hash_files(registry, files, all, &base);
        if (st == ST_OK || all->size > 1)
            st = comm_agree(all, (comm_at){"hash frozen values", -1}, st, base.count);
    }
    if (st == ST_OK)
        st = share_rows(&base, all);
    if (st == ST_OK)
        *out = base;
    else
        base_done(&base);
    return st;
}

static const base_row *find_row(const run_base *base, int64_t guess, const char *name)
{
    if (guess < base->count && strcmp(base->rows[guess].name, name) == 0)
        return &base->rows[guess];
    for (int64_t i = 0; i < base->count; i++)
        if (strcmp(base->rows[i].name, name) == 0)
            return &base->rows[i];
    return NULL;
}

const char *base_form_name(weight_form form)
{
    static const char *const names[] = {
        [WEIGHT_PLAIN] = "bf16", [WEIGHT_INT8] = "int8", [WEIGHT_NF4] = "nf4"};
    return names[form];
}

static status check_rows(const run_base *now, const run_base *then, const char *path)
{
    if (now->drawn && then->drawn && now->seed != then->seed)
        return FAIL_IN(ST_CONFIG, path,
                       "its frozen parameters were drawn from training.seed %" PRId64
                       ", and this run draws them from %" PRId64,
                       then->seed, now->seed);
    for (int64_t i = 0; i < now->count; i++) {
        const base_row *was = find_row(then, i, now->rows[i].name);
        if (was && !hash_equal(was->digest, now->rows[i].digest))
            return FAIL_IN(ST_CONFIG, path,
                           "it was trained on another base: %s is not the same in %s as in %s, "
                           "which its adapters and trained parameters belong to; set model.path to "
                           "that model",
                           now->rows[i].name, now->drawn ? "training.seed" : now->model,
                           then->drawn ? "training.seed" : then->model);
    }
    return ST_OK;
}

/* Only adapters with lengths of rows (lora.dora) have magnitudes. */
static status check_lengths(const run_base *now, const run_base *then, const char *path)
{
    if (!then->lora.rank || !now->lora.rank || then->lora.dora == now->lora.dora)
        return ST_OK;
    return FAIL_IN(ST_CONFIG, path,
                   "its adapters were trained with lora.dora %s, and lora.dora is %s now: only "
                   "those of DoRA have magnitudes, so neither can go on as the other; set it as it "
                   "was, or begin anew with "
                   "another job.dump_folder or checkpoint.load_step 0",
                   then->lora.dora ? "true" : "false", now->lora.dora ? "true" : "false");
}

static status check_form(const run_base *now, const run_base *then, const char *path)
{
    if (now->form == then->form)
        return ST_OK;
    return FAIL_IN(ST_CONFIG, path,
                   "its adapters were trained beside a base in %s, and lora.base is %s now: set it "
                   "as it was, or checkpoint.convert_states to true to go on beside the other",
                   base_form_name(then->form), base_form_name(now->form));
}

status base_check(const run_base *now, const run_base *then, bool converts, const char *path)
{
    TRY(check_rows(now, then, path));
    TRY(check_lengths(now, then, path));
    return converts ? ST_OK : check_form(now, then, path);
}

/* ---- base.json ---- */

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
