/* figures.c: see figures.h. */
#include "trainer/eval/figures.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double percent_right(const evaluation *e)
{
    return evaluation_percent(e->right, e->answers);
}

void evaluation_print(const evaluation *e, int64_t step)
{
    printf("eval: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("loss: %.4f  accuracy: %.1f%% of %" PRId64 " answers", e->loss, percent_right(e),
           e->answers);
    if (step < 0)
        printf("  images swapped: %.1f%% of %" PRId64 " (own: %.1f%%)",
               evaluation_percent(e->swapped_right, e->swapped), e->swapped,
               evaluation_percent(e->own_right, e->swapped));
    if (step < 0 && isfinite(e->chance_percent))
        printf("  chance: %.1f%%", e->chance_percent);
    printf("  seconds: %.1f\n", e->seconds);
    if (e->documents != e->answers)
        printf("eval: %.1f%% of %" PRId64 " documents have all answers right\n",
               evaluation_percent(e->documents_right, e->documents), e->documents);
    if (!e->vqa.all.count)
        return;
    printf("vqa: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("accuracy: %.2f%% of %" PRId64 " questions\n", vqa_share_percent(&e->vqa.all),
           e->vqa.all.count);
}

static void set_percent(html_fact *fact, const char *name, double percent)
{
    fact->name = name;
    snprintf(fact->value, sizeof fact->value, "%.1f %%", percent);
    fact->note[0] = 0;
}

int evaluation_facts(const evaluation *e, html_fact out[EVALUATION_FACTS])
{
    int n = 0;
    out[n] = (html_fact){.name = "held-out loss", .note = "mean over target tokens"};
    snprintf(out[n].value, sizeof out[n].value, "%.4f", e->loss);
    set_percent(&out[++n], "held-out accuracy", percent_right(e));
    snprintf(out[n].note, sizeof out[n].note, "of %" PRId64 " answers have every token right",
             e->answers);
    if (e->documents != e->answers) {
        set_percent(&out[++n], "whole documents",
                    evaluation_percent(e->documents_right, e->documents));
        snprintf(out[n].note, sizeof out[n].note,
                 "of %" PRId64 " documents have all of their answers right", e->documents);
    }
    if (e->swapped) {
        set_percent(&out[++n], "images swapped", evaluation_percent(e->swapped_right, e->swapped));
        snprintf(out[n].note, sizeof out[n].note,
                 "of %" PRId64 " answers; the same ones with their own pictures: %.1f %%",
                 e->swapped, evaluation_percent(e->own_right, e->swapped));
    }
    if (isfinite(e->chance_percent)) {
        set_percent(&out[++n], "chance", e->chance_percent);
        snprintf(out[n].note, sizeof out[n].note,
                 "how often a question asked of two pictures has the same answer");
    }
    if (e->vqa.all.count) {
        set_percent(&out[++n], "generated answers", vqa_share_percent(&e->vqa.all));
        snprintf(out[n].note, sizeof out[n].note,
                 "agreement with annotators on %" PRId64 " questions", e->vqa.all.count);
    }
    return n + 1;
}

void path_shown(const char *path, const char *folder, char *out, size_t size)
{
    const size_t inside = strlen(folder);
    const char *shown = path;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (inside > 1 && n > inside && strncmp(path, folder, inside) == 0 && path[inside] == '/')
        shown = path + inside + 1;
    else if (path[0] == '/')
        for (size_t i = 0; i + 1 < n; i++)
            shown = path[i] == '/' ? path + i + 1 : shown;
    snprintf(out, size, "%.*s", (int)(n - (size_t)(shown - path)), shown);
}

void data_fact(const conf *c, bool held_out, html_fact *out)
{
    const char *path = held_out && c->eval_path[0] ? c->eval_path : c->data_path;
    *out = (html_fact){.name = held_out ? "held-out data" : "data set"};
    path_shown(path, "", out->value, sizeof out->value);
    if (!out->value[0]) /* a mixture, or rows of a recording */
        snprintf(out->value, sizeof out->value, "several or recorded");
    snprintf(out->note, sizeof out->note, "split %s", held_out ? c->eval_split : c->data_split);
}
