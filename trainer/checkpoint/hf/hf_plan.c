/* SPDX-License-Identifier: Apache-2.0 */
/* hf_plan.c: see hf_plan.h. The steps are: open the source, list the tensors in the chosen layout,
 * choose their dtypes, then keep the source's files or cut new ones. */
#include "trainer/checkpoint/hf/hf_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/model/dims/convert.h"

static const int64_t default_shard_bytes = 5000000000; /* as transformers cuts them */
static const char single_name[] = "model.safetensors";
static const char head_name[] = "lm_head.weight";

/* The weights that the model came from. Without a source the folder has no tensors. */
typedef struct source {
    hf_folder folder;
    expert_layout layout;
} source;

void hf_plan_done(hf_plan *plan)
{
    free(plan->items);
    free(plan->files);
    hf_folder_close(&plan->source);
    *plan = (hf_plan){0};
}

/* Opens the source. A folder that does not fit the model, or no longer does, is not used. */
static status open_source(const char *path, const params *registry, source *out)
{
    hf_report report = {0};
    *out = (source){.layout = params_published(registry)};
    if (!path || !file_is_folder(path) || !hf_has_weights(path))
        return ST_OK;
    TRY(hf_folder_open(path, &out->folder));
    status st = hf_check(&out->folder, registry, &report);
    if (st != ST_OK || report.n_problems > 0)
        hf_folder_close(&out->folder);
    else
        out->layout = report.layout;
    hf_report_done(&report);
    return st;
}

/* Whether the source stores a tied model's head, which is the embedding once more. */
static bool repeats_embedding(const source *from, const params *registry)
{
    return !params_find(registry, head_name) && hf_folder_find(&from->folder, head_name);
}

static status list_items(hf_plan *plan, const params *registry, const source *from,
                         expert_layout stored)
{
    param_piece *pieces = NULL;
    bool head = repeats_embedding(from, registry);
    int64_t count = 0;
    TRY(params_pieces(registry, stored, &pieces, &count));
    plan->items = calloc((size_t)(count + 1), sizeof *plan->items);
    if (!plan->items) {
        free(pieces);
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)count);
    }
    for (int64_t i = 0; i < count; i++)
        plan->items[i].piece = pieces[i];
    plan->count = count;
    if (head) { /* the embedding is the registry's first row */
        param_piece *piece = &plan->items[plan->count++].piece;
        *piece = pieces[0];
        snprintf(piece->name, sizeof piece->name, "%s", head_name);
    }
    free(pieces);
    return ST_OK;
}

static st_dtype stored_dtype(const source *from, const char *name, st_dtype otherwise)
{
    const st_tensor *entry = hf_folder_find(&from->folder, name);
    return entry && convert_known(entry->dtype) ? entry->dtype : otherwise;
}

/* A tensor gets the dtype that it has in the source; if its name comes from another layout, the
 * dtype of the source's tensors of the same parameter. */
static status choose_dtypes(hf_plan *plan, const params *registry, const source *from, int dtype)
{
    st_dtype *of_param = malloc((size_t)(registry->count + 1) * sizeof *of_param);
    param_piece *stored = NULL;
    int64_t count = 0;
    status st = of_param
                    ? params_pieces(registry, from->layout, &stored, &count)
                    : FAIL(ST_NO_MEMORY, "no memory for %lld dtypes", (long long)registry->count);
    if (st == ST_OK) {
        for (int64_t i = 0; i < count; i++)
            of_param[stored[i].weight - registry->list] =
                stored_dtype(from, stored[i].name, DT_BF16);
        for (int64_t i = 0; i < plan->count; i++) {
            hf_item *item = &plan->items[i];
            st_dtype same =
                stored_dtype(from, item->piece.name, of_param[item->piece.weight - registry->list]);
            item->dtype = dtype == HF_EXPORT_F32    ? DT_F32
                          : dtype == HF_EXPORT_BF16 ? DT_BF16
                                                    : same;
        }
    }
    free(stored);
    free(of_param);
    return st;
}

/* Whether the source has this tensor's matrices as they will be here: with as many rows as columns
 * their shapes are the same in two layouts of experts, and their numbers are not. */
static bool lies_alike(const param_piece *piece, const source *from)
{
    return piece->weight->group != GROUP_EXPERTS ||
           piece->exchanged == (from->layout == EXPERTS_EXCHANGED);
}

/* Finds in the source what is to be taken from it: what is frozen and gets no lengths of rows, and
 * is stored there as it will be here. */
static void find_in_source(hf_plan *plan, const source *from)
{
    for (int64_t i = 0; i < plan->count; i++) {
        hf_item *item = &plan->items[i];
        const param_piece *piece = &item->piece;
        const st_tensor *tensor = hf_folder_find(&from->folder, piece->name);
        if (tensor && param_in_base(piece->weight) && !piece->weight->dora &&
            tensor->dtype == item->dtype && tensor->n_dims == piece->n_dims &&
            lies_alike(piece, from) &&
            memcmp(tensor->shape, piece->shape, (size_t)piece->n_dims * sizeof *piece->shape) == 0)
            item->source = tensor->data.data;
    }
}

static int by_place(const void *left, const void *right)
{
    const hf_item *first = left, *second = right;
    if (first->file != second->file)
        return first->file < second->file ? -1 : 1;
    /* Tensors with larger elements come first, so that all are aligned. */
    size_t x_size = st_dtype_size(first->dtype), y_size = st_dtype_size(second->dtype);
    if (x_size != y_size)
        return x_size > y_size ? -1 : 1;
    return first->place < second->place ? -1 : first->place > second->place;
}

static status name_files(hf_plan *planned, int64_t n_files)
{
    planned->n_files = n_files;
    planned->files = calloc((size_t)n_files, sizeof *planned->files);
    return planned->files ? ST_OK
                          : FAIL(ST_NO_MEMORY, "no memory for %lld file names", (long long)n_files);
}

/* Puts every tensor where the source has it. *out_kept is false if the source lacks one. */
static status keep_files(hf_plan *plan, const hf_folder *folder, bool *out_kept)
{
    bool same = true;
    *out_kept = false;
    for (int64_t i = 0; i < plan->count; i++) {
        hf_item *item = &plan->items[i];
        const st_tensor *tensor = hf_folder_find(folder, item->piece.name);
        if (!tensor)
            return ST_OK;
        item->file = hf_folder_file_of(folder, tensor);
        item->place = tensor - folder->files[item->file].tensors;
        same = same && tensor->dtype == item->dtype && tensor->n_dims == item->piece.n_dims &&
               memcmp(tensor->shape, item->piece.shape,
                      (size_t)tensor->n_dims * sizeof *tensor->shape) == 0;
    }
    TRY(name_files(plan, folder->n_files));
    for (int64_t i = 0; i < folder->n_files; i++)
        snprintf(plan->files[i], HF_NAME_MAX, "%s", folder->names[i]);
    plan->single = folder->n_files == 1 && strcmp(folder->names[0], single_name) == 0;
    plan->same = same && plan->count == folder->n_tensors;
    *out_kept = true;
    return ST_OK;
}

/* Fills one file after the other, in order; a tensor is never split. */
static status cut_files(hf_plan *planned, int64_t shard_bytes)
{
    int64_t filled = 0, file = 0;
    for (int64_t i = 0; i < planned->count; i++) {
        hf_item *item = &planned->items[i];
        int64_t bytes = item->piece.count * (int64_t)st_dtype_size(item->dtype);
        if (filled > 0 && filled + bytes > shard_bytes) {
            file++;
            filled = 0;
        }
        item->file = file;
        item->place = i;
        filled += bytes;
    }
    TRY(name_files(planned, file + 1));
    planned->single = file == 0;
    for (int64_t i = 0; i < planned->n_files; i++) {
        if (planned->single)
            snprintf(planned->files[i], HF_NAME_MAX, "%s", single_name);
        else
            snprintf(planned->files[i], HF_NAME_MAX, "model-%05lld-of-%05lld.safetensors",
                     (long long)i + 1, (long long)planned->n_files);
    }
    return ST_OK;
}

static status fill_plan(hf_plan *plan, const params *registry, const hf_export_options *options,
                        const source *from)
{
    bool kept = false;
    TRY(list_items(plan, registry, from, options->choose_layout ? options->layout : from->layout));
    TRY(choose_dtypes(plan, registry, from, options->dtype));
    if (options->frozen_is_source)
        find_in_source(plan, from);
    if (from->folder.n_tensors > 0 && options->shard_bytes == 0)
        TRY(keep_files(plan, &from->folder, &kept));
    if (!kept)
        TRY(cut_files(plan, options->shard_bytes > 0 ? options->shard_bytes : default_shard_bytes));
    for (int64_t i = 0; i < plan->count; i++)
        plan->total_bytes +=
            plan->items[i].piece.count * (int64_t)st_dtype_size(plan->items[i].dtype);
    qsort(plan->items, (size_t)plan->count, sizeof *plan->items, by_place);
    return ST_OK;
}

status hf_plan_make(const params *registry, const hf_export_options *options, hf_plan *out)
{
    source from;
    hf_plan planned = {0};
    TRY(open_source(options->source, registry, &from));
    status st = fill_plan(&planned, registry, options, &from);
    planned.source = from.folder;
    if (st == ST_OK)
        *out = planned;
    else
        hf_plan_done(&planned);
    return st;
}
