/* verbs_inspect.c: trainer inspect NAME|DIR: the tensors of a model, and how a folder differs. */
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/hf_check.h"
#include "trainer/verbs.h"

static const char *const group_names[GROUP_COUNT] = {"vision", "merger", "text", "router",
                                                     "experts"};

/* 31070754032 -> "31,070,754,032" */
static const char *with_commas(int64_t n, char out[32])
{
    char digits[24];
    int size = snprintf(digits, sizeof digits, "%lld", (long long)n), at = 0;
    for (int i = 0; i < size; i++) {
        if (i > 0 && (size - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static void print_shape(const param_piece *piece)
{
    char text[96];
    int n = snprintf(text, sizeof text, "[");
    for (int i = 0; i < piece->n_dims; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)piece->shape[i]);
    printf("  %-24s", (snprintf(text + n, sizeof text - (size_t)n, "]"), text));
}

static void print_tensors(const param_piece *pieces, int64_t n)
{
    int64_t count[GROUP_COUNT] = {0}, tensors[GROUP_COUNT] = {0};
    for (int64_t i = 0; i < n; i++) {
        const param_piece *piece = &pieces[i];
        int group = (int)piece->p->group;
        count[group] += piece->count;
        tensors[group]++;
        printf("%-64s", piece->name);
        print_shape(piece);
        printf("  %12lld  %s\n", (long long)piece->count, group_names[group]);
    }
    printf("\n");
    for (int group = 0; group < GROUP_COUNT; group++) {
        if (tensors[group] > 0)
            printf("%-8s  %15lld parameters in %lld tensors\n", group_names[group],
                   (long long)count[group], (long long)tensors[group]);
    }
}

static void print_problems(const hf_report *r)
{
    static const char *const kinds[HF_PROBLEM_KINDS] = {"missing", "extra", "misshapen"};
    for (int kind = 0; kind < HF_PROBLEM_KINDS; kind++) {
        for (int64_t i = 0; i < r->n_problems; i++) {
            if (r->problems[i].kind == kind)
                printf("%-9s  %s\n", kinds[kind], r->problems[i].text);
        }
    }
    printf("%lld missing, %lld extra, %lld misshapen\n", (long long)r->count[HF_MISSING],
           (long long)r->count[HF_EXTRA], (long long)r->count[HF_MISSHAPEN]);
}

/* *out_report stays empty for a preset or a folder without weights. */
static status check_folder(const char *folder, const params *p, bool *out_has, hf_report *out)
{
    hf_folder f = {0};
    *out_has = hf_has_weights(folder);
    if (!*out_has)
        return ST_OK;
    TRY(hf_folder_open(folder, &f));
    status st = hf_check(&f, p, out);
    hf_folder_close(&f);
    return st;
}

static status inspect(const char *name, const model_dims *d, const params *p)
{
    hf_report report = {0};
    param_piece *pieces = NULL;
    int64_t n = 0;
    bool has = false;
    char total[32], tensors[32];
    TRY(check_folder(name, p, &has, &report));
    bool per_expert = has ? report.layout == HF_LAYOUT_PER_EXPERT : p->text_only_names;
    status st = params_pieces(p, per_expert, &pieces, &n);
    if (st == ST_OK) {
        printf("%s: %s%s\n\n", d->name, d->model_type, d->text.tied ? ", tied embeddings" : "");
        print_tensors(pieces, n);
        if (has) {
            printf("\nweights: %s\n", hf_layout_name(report.layout));
            print_problems(&report);
        }
        printf("\n%s parameters in %s tensors\n", with_commas(p->total, total),
               with_commas(n, tensors));
        st = hf_report_status(&report, name);
    }
    free(pieces);
    hf_report_done(&report);
    return st;
}

status verb_inspect(int argc, char **argv)
{
    model_dims d;
    params *p = NULL;
    if (argc != 2) {
        fprintf(stderr, "presets:\n");
        dims_list_presets(stderr);
        return FAIL(ST_USAGE, "usage: trainer inspect NAME|DIR");
    }
    TRY(dims_load(argv[1], &d));
    TRY(params_new(&d, &p));
    status st = inspect(argv[1], &d, p);
    params_free(&p);
    return st;
}
