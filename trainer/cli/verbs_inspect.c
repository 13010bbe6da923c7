/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_inspect.c: trainer inspect NAME|DIR: lists the tensors of a model, and for a folder with
 * weights how it differs from what the model needs. */
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/cli/verbs.h"

static const char *const group_names[GROUP_COUNT] = {"vision", "merger", "text", "router",
                                                     "experts"};

/* Prints a line per tensor and a sum per group. weights: NULL for a preset, or a folder without
 * weights. */
static void print_tensors(const param_piece *pieces, int64_t how_many, const hf_folder *weights)
{
    int64_t count[GROUP_COUNT] = {0}, tensors[GROUP_COUNT] = {0}, bytes[GROUP_COUNT] = {0};
    for (int64_t i = 0; i < how_many; i++) {
        const param_piece *piece = &pieces[i];
        const st_tensor *tensor = weights ? hf_folder_find(weights, piece->name) : NULL;
        int group = (int)piece->weight->group;
        char shape[HF_SHAPE_TEXT];
        count[group] += piece->count;
        tensors[group]++;
        printf("%-64s  %-24s  %12lld", piece->name,
               hf_shape_text(piece->n_dims, piece->shape, shape), (long long)piece->count);
        if (tensor) {
            bytes[group] += (int64_t)tensor->data.size;
            printf("  %-4s  %13zu B", st_dtype_name(tensor->dtype), tensor->data.size);
        } else if (weights) {
            printf("  %-4s  %13s  ", "-", "missing");
        }
        printf("  %s\n", group_names[group]);
    }
    printf("\n");
    for (int group = 0; group < GROUP_COUNT; group++) {
        if (tensors[group] == 0)
            continue;
        printf("%-8s  %15lld parameters in %lld tensors", group_names[group],
               (long long)count[group], (long long)tensors[group]);
        if (weights)
            printf(", %lld bytes", (long long)bytes[group]);
        printf("\n");
    }
}

/* Prints how many files and bytes there are, and how many tensors have which dtype. */
static void print_weights(const hf_folder *folder, const hf_report *report, bool moe)
{
    int64_t of_dtype[DT_COUNT] = {0}, bytes = 0;
    for (int64_t i = 0; i < folder->n_tensors; i++) {
        of_dtype[folder->tensors[i]->dtype]++;
        bytes += (int64_t)folder->tensors[i]->data.size;
    }
    printf("\nweights: %lld bytes in %lld tensors in %lld file%s", (long long)bytes,
           (long long)folder->n_tensors, (long long)folder->n_files,
           folder->n_files == 1 ? "" : "s");
    for (int j = 0; j < DT_COUNT; j++) {
        if (of_dtype[j] > 0)
            printf(", %lld %s", (long long)of_dtype[j], st_dtype_name((st_dtype)j));
    }
    printf("\n%s%s", moe ? hf_layout_name(report->layout) : "", moe ? "\n" : "");
}

static void print_problems(const hf_report *report)
{
    static const char *const kinds[HF_PROBLEM_KINDS] = {"missing", "extra", "misshapen"};
    for (int kind = 0; kind < HF_PROBLEM_KINDS; kind++) {
        for (int64_t i = 0; i < report->n_problems; i++) {
            if (report->problems[i].kind == kind)
                printf("%-9s  %s\n", kinds[kind], escape_text(report->problems[i].text).text);
        }
    }
    printf("%lld missing, %lld extra, %lld misshapen\n", (long long)report->count[HF_MISSING],
           (long long)report->count[HF_EXTRA], (long long)report->count[HF_MISSHAPEN]);
}

/* Prints everything first, and then fails if the folder has problems. */
static status inspect(const char *name, const model_dims *dims, const params *registry)
{
    hf_folder weights = {0};
    hf_report report = {.layout = params_published(registry)};
    param_piece *pieces = NULL;
    int64_t count = 0;
    char total[DIGITS_TEXT], tensors[DIGITS_TEXT];
    bool has = file_is_folder(name) && hf_has_weights(name);
    status st;
    if (has) {
        TRY(hf_folder_open(name, &weights));
        TRY_OR(done, hf_check(&weights, registry, &report));
    }
    TRY_OR(done, params_pieces(registry, report.layout, &pieces, &count));
    printf("%s: %s%s\n\n", escape_text(dims->name).text, escape_text(dims->model_type).text,
           dims->text.tied ? ", tied embeddings" : "");
    print_tensors(pieces, count, has ? &weights : NULL);
    if (has) {
        print_weights(&weights, &report, dims->text.experts > 0);
        print_problems(&report);
    }
    printf("\n%s parameters in %s tensors\n", digits_with_commas(registry->total, total),
           digits_with_commas(count, tensors));
    st = hf_report_status(&report, name);
done:
    free(pieces);
    hf_report_done(&report);
    hf_folder_close(&weights);
    return st;
}

status verb_inspect(int argc, char **argv)
{
    model_dims dims;
    params *registry = NULL;
    char folder[STATUS_PATH_MAX];
    if (argc < 2) {
        dims_list_presets(stdout);
        return ST_OK;
    }
    if (argc > 2)
        return FAIL(ST_USAGE, "inspect takes one name or folder; \"%s\" is a second one", argv[2]);
    TRY(model_files_find(argv[1], folder));
    TRY(dims_load(folder, &dims));
    TRY(params_new(&dims, &registry));
    status st = inspect(folder, &dims, registry);
    params_free(&registry);
    return st;
}
