/* hf_plan.c: see hf_plan.h. */
#include "trainer/checkpoint/hf_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/hf_check.h"
#include "trainer/model/convert.h"

static const int64_t default_shard_bytes = 5000000000; /* as transformers cuts them */
static const char single_name[] = "model.safetensors";
static const char head_name[] = "lm_head.weight";

/* The weights that the model came from; no tensors: none. */
typedef struct source {
    hf_folder folder;
    expert_layout layout;
} source;

void hf_plan_done(hf_plan *e)
{
    free(e->items);
    free(e->files);
    *e = (hf_plan){0};
}

/* A folder that does not fit the model (any more) is no source. */
static status open_source(const char *path, const params *p, source *out)
{
    hf_report report = {0};
    *out = (source){.layout = params_published(p)};
    if (!path || !file_is_folder(path) || !hf_has_weights(path))
        return ST_OK;
    TRY(hf_folder_open(path, &out->folder));
    status st = hf_check(&out->folder, p, &report);
    if (st != ST_OK || report.n_problems > 0)
        hf_folder_close(&out->folder);
    else
        out->layout = report.layout;
    hf_report_done(&report);
    return st;
}

/* The source may name a tied model's head: the embedding once more. */
static bool repeats_embedding(const source *from, const params *p)
{
    return !params_find(p, head_name) && hf_folder_find(&from->folder, head_name);
}

static status list_items(hf_plan *e, const params *p, const source *from, expert_layout stored)
{
    param_piece *pieces = NULL;
    bool head = repeats_embedding(from, p);
    int64_t n = 0;
    TRY(params_pieces(p, stored, &pieces, &n));
    e->items = calloc((size_t)(n + 1), sizeof *e->items);
    if (!e->items) {
        free(pieces);
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)n);
    }
    for (int64_t i = 0; i < n; i++)
        e->items[i].piece = pieces[i];
    e->n = n;
    if (head) { /* the embedding is the registry's first row */
        param_piece *piece = &e->items[e->n++].piece;
        *piece = pieces[0];
        snprintf(piece->name, sizeof piece->name, "%s", head_name);
    }
    free(pieces);
    return ST_OK;
}

static st_dtype stored_dtype(const source *from, const char *name, st_dtype otherwise)
{
    const st_tensor *t = hf_folder_find(&from->folder, name);
    return t && convert_known(t->dtype) ? t->dtype : otherwise;
}

/* As the source has the tensor, or in another layout what it makes the same parameter of. */
static status choose_dtypes(hf_plan *e, const params *p, const source *from, int dtype)
{
    st_dtype *of_param = malloc((size_t)(p->n + 1) * sizeof *of_param);
    param_piece *stored = NULL;
    int64_t n = 0;
    status st = of_param ? params_pieces(p, from->layout, &stored, &n)
                         : FAIL(ST_NO_MEMORY, "no memory for %lld dtypes", (long long)p->n);
    if (st == ST_OK) {
        for (int64_t i = 0; i < n; i++)
            of_param[stored[i].p - p->list] = stored_dtype(from, stored[i].name, DT_BF16);
        for (int64_t i = 0; i < e->n; i++) {
            hf_item *item = &e->items[i];
            st_dtype same = stored_dtype(from, item->piece.name, of_param[item->piece.p - p->list]);
            item->dtype = dtype == HF_EXPORT_F32    ? DT_F32
                          : dtype == HF_EXPORT_BF16 ? DT_BF16
                                                    : same;
        }
    }
    free(stored);
    free(of_param);
    return st;
}

static int by_place(const void *a, const void *b)
{
    const hf_item *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    /* Larger elements first, so that all are aligned. */
    size_t x_size = st_dtype_size(x->dtype), y_size = st_dtype_size(y->dtype);
    if (x_size != y_size)
        return x_size > y_size ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static status name_files(hf_plan *e, int64_t n)
{
    e->n_files = n;
    e->files = calloc((size_t)n, sizeof *e->files);
    return e->files ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for %lld file names", (long long)n);
}

/* Every tensor where the source has it; false where it has one under no such name. */
static status keep_files(hf_plan *e, const hf_folder *f, bool *out_kept)
{
    bool same = true;
    *out_kept = false;
    for (int64_t i = 0; i < e->n; i++) {
        hf_item *item = &e->items[i];
        const st_tensor *t = hf_folder_find(f, item->piece.name);
        if (!t)
            return ST_OK;
        item->file = hf_folder_file_of(f, t);
        item->place = t - f->files[item->file].tensors;
        same = same && t->dtype == item->dtype && t->n_dims == item->piece.n_dims &&
               memcmp(t->shape, item->piece.shape, (size_t)t->n_dims * sizeof *t->shape) == 0;
    }
    TRY(name_files(e, f->n_files));
    for (int64_t i = 0; i < f->n_files; i++)
        snprintf(e->files[i], HF_NAME_MAX, "%s", f->names[i]);
    e->single = f->n_files == 1 && strcmp(f->names[0], single_name) == 0;
    e->same = same && e->n == f->n_tensors;
    *out_kept = true;
    return ST_OK;
}

/* Greedy in order; a tensor is never split. */
static status cut_files(hf_plan *e, int64_t shard_bytes)
{
    int64_t filled = 0, file = 0;
    for (int64_t i = 0; i < e->n; i++) {
        hf_item *item = &e->items[i];
        int64_t bytes = item->piece.count * (int64_t)st_dtype_size(item->dtype);
        if (filled > 0 && filled + bytes > shard_bytes) {
            file++;
            filled = 0;
        }
        item->file = file;
        item->place = i;
        filled += bytes;
    }
    TRY(name_files(e, file + 1));
    e->single = file == 0;
    for (int64_t i = 0; i < e->n_files; i++) {
        if (e->single)
            snprintf(e->files[i], HF_NAME_MAX, "%s", single_name);
        else
            snprintf(e->files[i], HF_NAME_MAX, "model-%05lld-of-%05lld.safetensors",
                     (long long)i + 1, (long long)e->n_files);
    }
    return ST_OK;
}

static status fill_plan(hf_plan *e, const params *p, const hf_export_options *o, const source *from)
{
    bool kept = false;
    TRY(list_items(e, p, from, o->choose_layout ? o->layout : from->layout));
    TRY(choose_dtypes(e, p, from, o->dtype));
    if (from->folder.n_tensors > 0 && o->shard_bytes == 0)
        TRY(keep_files(e, &from->folder, &kept));
    if (!kept)
        TRY(cut_files(e, o->shard_bytes > 0 ? o->shard_bytes : default_shard_bytes));
    for (int64_t i = 0; i < e->n; i++)
        e->total_bytes += e->items[i].piece.count * (int64_t)st_dtype_size(e->items[i].dtype);
    qsort(e->items, (size_t)e->n, sizeof *e->items, by_place);
    return ST_OK;
}

status hf_plan_make(const params *p, const hf_export_options *o, hf_plan *out)
{
    source from;
    hf_plan e = {0};
    TRY(open_source(o->source, p, &from));
    status st = fill_plan(&e, p, o, &from);
    hf_folder_close(&from.folder);
    if (st == ST_OK)
        *out = e;
    else
        hf_plan_done(&e);
    return st;
}
