/* figures.c: see figures.h. */
#include "trainer/eval/figures.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double percent_right(const evaluation *result)
{
    return evaluation_percent(result->right, result->answers);
}

void evaluation_print(const evaluation *result, int64_t step)
{
    printf("eval: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("loss: %.4f  accuracy: %.1f%% of %" PRId64 " answers", result->loss,
           percent_right(result), result->answers);
    if (step < 0)
        printf("  images swapped: %.1f%% of %" PRId64 " (own: %.1f%%)",
               evaluation_percent(result->swapped_right, result->swapped), result->swapped,
               evaluation_percent(result->own_right, result->swapped));
    if (step < 0 && isfinite(result->chance_percent))
        printf("  chance: %.1f%%", result->chance_percent);
    printf("  seconds: %.1f\n", result->seconds);
    if (result->documents != result->answers)
        printf("eval: %.1f%% of %" PRId64 " documents have all answers right\n",
               evaluation_percent(result->documents_right, result->documents), result->documents);
    if (!result->vqa.all.count)
        return;
    printf("vqa: ");
    if (step >= 0)
        printf("step: %" PRId64 "  ", step);
    printf("accuracy: %.2f%% of %" PRId64 " questions\n", vqa_share_percent(&result->vqa.all),
           result->vqa.all.count);
}

static void set_percent(html_fact *fact, const char *name, double percent)
{
    fact->name = name;
    snprintf(fact->value, sizeof fact->value, "%.1f %%", percent);
    fact->note[0] = 0;
}

int evaluation_facts(const evaluation *result, html_fact out[EVALUATION_FACTS])
{
    int count = 0;
    out[count] = (html_fact){.name = "held-out loss", .note = "mean over target tokens"};
    snprintf(out[count].value, sizeof out[count].value, "%.4f", result->loss);
    set_percent(&out[++count], "held-out accuracy", percent_right(result));
    snprintf(out[count].note, sizeof out[count].note,
             "of %" PRId64 " answers have every token right", result->answers);
    if (result->documents != result->answers) {
        set_percent(&out[++count], "whole documents",
                    evaluation_percent(result->documents_right, result->documents));
        snprintf(out[count].note, sizeof out[count].note,
                 "of %" PRId64 " documents have all of their answers right", result->documents);
    }
    if (result->swapped) {
        set_percent(&out[++count], "images swapped",
                    evaluation_percent(result->swapped_right, result->swapped));
        snprintf(out[count].note, sizeof out[count].note,
                 "of %" PRId64 " answers; the same ones with their own pictures: %.1f %%",
                 result->swapped, evaluation_percent(result->own_right, result->swapped));
    }
    if (isfinite(result->chance_percent)) {
        set_percent(&out[++count], "chance", result->chance_percent);
        snprintf(out[count].note, sizeof out[count].note,
                 "how often a question asked of two pictures has the same answer");
    }
    if (result->vqa.all.count) {
        set_percent(&out[++count], "generated answers", vqa_share_percent(&result->vqa.all));
        snprintf(out[count].note, sizeof out[count].note,
                 "agreement with annotators on %" PRId64 " questions", result->vqa.all.count);
    }
    return count + 1;
}

void path_shown(const char *path, const char *folder, char *out, size_t size)
{
    const size_t inside = strlen(folder);
    const char *shown = path;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (inside > 1 && length > inside && strncmp(path, folder, inside) == 0 && path[inside] == '/')
        shown = path + inside + 1;
    else if (path[0] == '/')
        for (size_t i = 0; i + 1 < length; i++)
            shown = path[i] == '/' ? path + i + 1 : shown;
    snprintf(out, size, "%.*s", (int)(length - (size_t)(shown - path)), shown);
}

void run_fact(const conf *options, html_fact *out)
{
    *out = (html_fact){.name = "run"};
    path_shown(options->job_dump_folder, "", out->value, sizeof out->value);
    snprintf(out->note, sizeof out->note, "%s", options->job_description);
}

void data_fact(const conf *options, bool held_out, html_fact *out)
{
    const char *path = held_out && options->eval_path[0] ? options->eval_path : options->data_path;
    *out = (html_fact){.name = held_out ? "held-out data" : "data set"};
    path_shown(path, "", out->value, sizeof out->value);
    if (!out->value[0]) /* a mixture, or rows of a recording */
        snprintf(out->value, sizeof out->value, "several or recorded");
    snprintf(out->note, sizeof out->note, "split %s",
             held_out ? options->eval_split : options->data_split);
}
