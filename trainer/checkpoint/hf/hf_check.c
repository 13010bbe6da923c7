/* SPDX-License-Identifier: Apache-2.0 */
/* hf_check.c: see hf_check.h. The layout of experts is found first; then every tensor that the
 * registry has in that layout (param_piece) is looked up in the folder, and after that every tensor
 * of the folder among those. */
#include "trainer/checkpoint/hf/hf_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compare.h"
#include "common/base/words.h"
#include "trainer/model/dims/convert.h"

static const char *const kind_names[HF_PROBLEM_KINDS] = {"missing", "extra", "misshapen"};

const char *hf_layout_name(expert_layout which)
{
    switch (which) {
    case EXPERTS_FUSED:
        return "experts fused, [E, in, out] (published)";
    case EXPERTS_EXCHANGED:
        return "experts fused, [E, out, in] (5 series)";
    default:
        return "one matrix per expert";
    }
}

/* Adds a problem to the report. */
static status problem(hf_report *report, int kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static status problem(hf_report *report, int kind, const char *fmt, ...)
{
    if (report->n_problems == report->capacity) {
        int64_t more = report->capacity ? 2 * report->capacity : 64;
        hf_problem *list = realloc(report->problems, (size_t)more * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "no memory for %lld problems", (long long)more);
        report->problems = list;
        report->capacity = more;
    }
    hf_problem *new_problem = &report->problems[report->n_problems++];
    new_problem->kind = kind;
    report->count[kind]++;
    va_list args;
    va_start(args, fmt);
    vsnprintf(new_problem->text, sizeof new_problem->text, fmt, args);
    va_end(args);
    return ST_OK;
}

void hf_report_done(hf_report *report)
{
    free(report->problems);
    *report = (hf_report){0};
}

const char *hf_shape_text(int n_dims, const int64_t *shape, char out[HF_SHAPE_TEXT])
{
    size_t count = words_add(out, HF_SHAPE_TEXT, 0, "[");
    for (int i = 0; i < n_dims; i++)
        count = words_add(out, HF_SHAPE_TEXT, count, "%s%" PRId64, i ? ", " : "", shape[i]);
    words_add(out, HF_SHAPE_TEXT, count, "]");
    return out;
}

static bool shape_is(const st_tensor *entry, int n_dims, const int64_t *shape)
{
    return entry->n_dims == n_dims &&
           memcmp(entry->shape, shape, (size_t)n_dims * sizeof *shape) == 0;
}

/* Whether this fused tensor has the shape of the parameter, or with `exchanged` that shape with its
 * last two axes exchanged. */
static bool fits_param(const st_tensor *entry, const param *weight, bool exchanged)
{
    int64_t shape[3] = {weight->shape[0], weight->shape[exchanged ? 2 : 1],
                        weight->shape[exchanged ? 1 : 2]};
    return shape_is(entry, 3, shape);
}

static expert_layout find_layout(const hf_folder *folder, const params *registry)
{
    bool maybe_p = true, maybe_v5 = true, fused = false;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        const st_tensor *tensor =
            row->group == GROUP_EXPERTS ? hf_folder_find(folder, row->name) : NULL;
        if (!tensor)
            continue;
        fused = true;
        maybe_p = maybe_p && fits_param(tensor, row, false);
        maybe_v5 = maybe_v5 && fits_param(tensor, row, true);
    }
    if (fused)
        return maybe_v5 && !maybe_p ? EXPERTS_EXCHANGED : EXPERTS_FUSED;
    /* There is no fused tensor: experts are separate, or else as the model is published. */
    for (int64_t i = 0; i < registry->count; i++) {
        char name[160];
        const param *row = &registry->list[i];
        if (row->group != GROUP_EXPERTS)
            continue;
        int stem = (int)(strrchr(row->name, '.') - row->name);
        snprintf(name, sizeof name, "%.*s.0.down_proj.weight", stem, row->name);
        if (hf_folder_find(folder, name))
            return EXPERTS_SEPARATE;
    }
    return params_published(registry);
}

static status check_piece(const hf_folder *folder, const param_piece *piece, hf_report *report)
{
    const st_tensor *tensor = hf_folder_find(folder, piece->name);
    if (!tensor)
        return problem(report, HF_MISSING, "%s", piece->name);
    char found[HF_SHAPE_TEXT], wanted[HF_SHAPE_TEXT];
    hf_shape_text(tensor->n_dims, tensor->shape, found);
    hf_shape_text(piece->n_dims, piece->shape, wanted);
    if (!shape_is(tensor, piece->n_dims, piece->shape))
        return problem(report, HF_MISSHAPEN, "%s %s, wanted %s", piece->name, found, wanted);
    if (!convert_known(tensor->dtype))
        return problem(report, HF_MISSHAPEN, "%s has dtype %s, wanted BF16, F16, F32 or F64",
                       piece->name, st_dtype_name(tensor->dtype));
    return ST_OK;
}

/* Finds the tensors of the folder that the registry does not have. */
static status find_extra(const hf_folder *folder, const params *registry, const param_piece *pieces,
                         int64_t count, hf_report *report)
{
    const char **names = malloc((size_t)(count > 0 ? count : 1) * sizeof *names);
    if (!names)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensor names", (long long)count);
    for (int64_t i = 0; i < count; i++)
        names[i] = pieces[i].name;
    qsort(names, (size_t)count, sizeof *names, compare_texts);
    bool tied = params_find(registry, "lm_head.weight") == NULL;
    status st = ST_OK;
    for (int64_t i = 0; i < folder->n_tensors && st == ST_OK; i++) {
        const char *name = folder->tensors[i]->name;
        if (bsearch(&name, names, (size_t)count, sizeof *names, compare_texts) ||
            (tied && strcmp(name, "lm_head.weight") == 0))
            continue;
        st = problem(report, HF_EXTRA, "%s", name);
    }
    free(names);
    return st;
}

status hf_check(const hf_folder *folder, const params *registry, hf_report *out)
{
    hf_report report = {.layout = find_layout(folder, registry)};
    param_piece *pieces = NULL;
    int64_t count = 0;
    TRY(params_pieces(registry, report.layout, &pieces, &count));
    status st = ST_OK;
    for (int64_t i = 0; i < count && st == ST_OK; i++)
        st = check_piece(folder, &pieces[i], &report);
    if (st == ST_OK)
        st = find_extra(folder, registry, pieces, count, &report);
    free(pieces);
    if (st != ST_OK) {
        hf_report_done(&report);
        return st;
    }
    *out = report;
    return ST_OK;
}

status hf_report_status(const hf_report *report, const char *source)
{
    enum { SHOWN = 4 /* problems of each kind */ };
    char text[1600] = "";
    size_t at = 0;
    if (report->n_problems == 0)
        return ST_OK;
    for (int kind = 0; kind < HF_PROBLEM_KINDS; kind++) {
        int shown = 0;
        for (int64_t i = 0; i < report->n_problems && shown < SHOWN; i++) {
            if (report->problems[i].kind != kind)
                continue;
            at = words_add(text, sizeof text, at, "%s%.200s",
                           shown ? ", "
                           : at  ? "; "
                                 : "",
                           report->problems[i].text);
            if (shown++ == 0)
                at = words_add(text, sizeof text, at, " (%s, %lld in all)", kind_names[kind],
                               (long long)report->count[kind]);
        }
    }
    return FAIL_IN(ST_BAD_INPUT, source, "the tensors do not fit the model: %s", text);
}
