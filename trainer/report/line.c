/* SPDX-License-Identifier: Apache-2.0 */
/* line.c: adds up the reports of the steps between two log lines, works out the rates, and writes
 * them to standard output, metrics.jsonl and TensorBoard's files. numbers_of lists what
 * metrics.jsonl and TensorBoard both have, each number with its key in the one and its tag in the
 * other. write_metrics adds the counts, which only metrics.jsonl has. */
#include "trainer/report/line.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/words.h"
#include "common/json/json.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/ops/table.h"
#include "trainer/report/rewind.h"
#include "trainer/report/tensorboard.h"

struct reporter {
    const session *session;
    int64_t log_freq;
    int mfu_kind;
    peak_rate peak; /* of one device */
    double devices; /* how many devices did the work that a line counts */
    FILE *metrics;
    bool cut;  /* the last line was cut short: the next one must begin on a line of its own */
    bool told; /* the user knows that the disk refuses lines */
    bool mute; /* the user knows that standard output is closed */
    char path[STATUS_PATH_MAX];
    tensorboard *board;  /* NULL: not wanted */
    monitor *watch;      /* NULL: there is none */
    double step_seconds; /* of the steps up to the last line, for the time left */
    /* The steps since the last line: how many, when they began, their sums, the last of them. */
    int64_t steps, since_ns;
    step_report sum, last;
    double load, idle; /* of experts in the last step, see expert_load */
    bool unprinted;    /* `last` has no line yet */
};

static status open_board(reporter *reports, const conf *options, const char *folder)
{
    char path[STATUS_PATH_MAX];
    if (!options->metrics_enable_tensorboard || !folder[0])
        return ST_OK;
    snprintf(path, sizeof path, "%s/tb", folder);
    return tensorboard_open(path, &reports->board);
}

static double devices_of(const session *run)
{
    const int64_t count = run->mesh.layout.world;
    return count > 1 ? (double)count : 1.0;
}

status reporter_new(const conf *options, const session *run, const peak_rate *peak,
                    const char *folder, reporter **out)
{
    reporter *reports = calloc(1, sizeof *reports);
    if (!reports)
        return FAIL(ST_NO_MEMORY, "no memory for the reporter");
    reports->session = run;
    reports->log_freq = options->metrics_log_freq;
    reports->mfu_kind = options->metrics_mfu;
    reports->peak = *peak;
    reports->devices = devices_of(run);
    reports->since_ns = clock_ns();
    if (folder[0]) {
        snprintf(reports->path, sizeof reports->path, "%s/metrics.jsonl", folder);
        reports->metrics = fopen(reports->path, "a");
        if (!reports->metrics) {
            status st = FAIL_IN(ST_CANT_CREATE, reports->path, "%s", strerror(errno));
            free(reports);
            return st;
        }
    }
    status st = open_board(reports, options, folder);
    if (st != ST_OK) {
        reporter_free(&reports);
        return st;
    }
    *out = reports;
    return ST_OK;
}

void reporter_free(reporter **held)
{
    reporter *reports = *held;
    if (!reports)
        return;
    if (reports->metrics)
        fclose(reports->metrics);
    tensorboard_close(&reports->board);
    free(reports);
    *held = NULL;
}

void reporter_watch(reporter *reports, monitor *watch)
{
    reports->watch = watch;
}

static void add_report(step_report *sum, const step_report *step)
{
    sum->tokens += step->tokens;
    sum->row_capacity += step->row_capacity;
    sum->patches += step->patches;
    sum->documents += step->documents;
    sum->pairs += step->pairs;
    sum->images += step->images;
    sum->targets += step->targets;
    sum->wait_ns += step->wait_ns;
    flops_add(&sum->flops, &step->flops);
}

typedef struct figures {
    int64_t until_ns;                 /* when the steps of this line ended */
    int64_t next_ns;                  /* when those of the next one began */
    size_t memory_used, memory_total; /* bytes */
    double seconds, memory_gib, memory_share, tps, tflops, mfu, vision, wait, fill;
    double images, samples, pairs; /* per second */
    double left;                   /* seconds; below 0: not known */
} figures;

/* Works out how evenly the last micro-batch was routed: rows of the busiest expert over the mean,
 * averaged over the layers of this rank's pipeline stage; and the percentage of experts that were
 * given no row. */
static void expert_load(reporter *reports, const step_report *step)
{
    const session *run = reports->session;
    const int64_t experts = run->dims.text.experts;
    int64_t judged = 0, idle = 0;
    reports->load = reports->idle = NAN;
    if (!step->expert_count)
        return;
    double sum = 0.0;
    const stage_part part = stage_part_of(&run->dims, &run->mesh.layout, run->mesh.place.pipeline);
    for (int64_t i = part.first; i < part.end; i++) {
        int64_t total = 0, most = 0;
        if (!dims_layer_is_moe(&run->dims, i))
            continue;
        for (int64_t expert = 0; expert < experts; expert++) {
            int64_t expert_count = step->expert_count[i * experts + expert];
            total += expert_count;
            most = expert_count > most ? expert_count : most;
            idle += expert_count == 0;
        }
        sum += total ? (double)(most * experts) / (double)total : 1.0;
        judged++;
    }
    if (judged) {
        reports->load = sum / (double)judged;
        reports->idle = 100.0 * (double)idle / (double)(judged * experts);
    }
}

/* Seconds that the rest of the run takes at the last line's pace; below 0: not known. */
static double seconds_left(const reporter *reports)
{
    int64_t steps = reports->session->schedule.steps;
    if (steps <= 0 || reports->step_seconds <= 0.0)
        return -1.0;
    return (double)(steps - reports->last.step) * reports->step_seconds;
}

static status figures_of(reporter *reports, figures *numbers)
{
    const step_report *sum = &reports->sum;
    const session *run = reports->session;
    size_t used, total;
    /* Taken before anything here waits for the device,
     * since further steps may already be queued. */
    numbers->until_ns = clock_ns();
    numbers->seconds = (double)(numbers->until_ns - reports->since_ns) * 1e-9;
    TRY(run->device->backend->memory(run->device, &used, &total));
    numbers->memory_used = used;
    numbers->memory_total = total;
    numbers->memory_gib = (double)used / 1073741824.0;
    numbers->memory_share = total ? 100.0 * (double)used / (double)total : 0.0;
    /* Tokens and FLOPs of one device. metrics.mfu torchtitan counts whole rows with their padding,
     * as torchtitan does; otherwise only what the rows really hold counts. */
    bool titan = reports->mfu_kind == MFU_TORCHTITAN;
    numbers->tps =
        (double)(titan ? sum->row_capacity : sum->tokens) / numbers->seconds / reports->devices;
    double work = titan ? (double)sum->row_capacity *
                              dims_flops_torchtitan(&run->dims, run->conf->training_seq_len)
                        : (double)sum->flops.training;
    work /= reports->devices;
    numbers->tflops = work / numbers->seconds * 1e-12;
    const int64_t before = clock_ns();
    TRY(speed_share(run->stream, work / numbers->seconds, &reports->peak, &numbers->mfu));
    numbers->mfu *= 100.0;
    numbers->next_ns =
        numbers->until_ns + clock_ns() - before; /* the peak may have been measured again */
    double vision = (double)(sum->flops.patch_embed + sum->flops.vision_blocks +
                             sum->flops.vision_attention + sum->flops.mergers);
    numbers->vision = sum->flops.forward ? 100.0 * vision / (double)sum->flops.forward : 0.0;
    numbers->wait = 100.0 * (double)sum->wait_ns * 1e-9 / numbers->seconds;
    numbers->fill =
        sum->row_capacity ? 100.0 * (double)sum->tokens / (double)sum->row_capacity : 0.0;
    numbers->images = (double)sum->images / numbers->seconds;
    numbers->samples = (double)sum->documents / numbers->seconds;
    numbers->pairs = (double)sum->pairs / numbers->seconds;
    return ST_OK;
}

enum { MOST_REALS = 32 };

/* A number of a line: its key in metrics.jsonl and its tag in TensorBoard, which is torchtitan's
 * where torchtitan has such a number. */
typedef struct number {
    const char *key, *tag;
    double value;
} number;

static int numbers_of(const reporter *reports, const step_report *step, const figures *numbers,
                      number out[MOST_REALS])
{
    static const char *const keys[GROUP_COUNT] = {"grad_norm_vision", "grad_norm_merger",
                                                  "grad_norm_text", "grad_norm_router",
                                                  "grad_norm_experts"};
    static const char *const tags[GROUP_COUNT] = {"grad_norm/vision", "grad_norm/merger",
                                                  "grad_norm/text", "grad_norm/router",
                                                  "grad_norm/experts"};
    const number list[] = {
        {"loss", "loss_metrics/global_avg_loss", step->loss},
        {"aux", "loss_metrics/router_aux", step->aux},
        {"grad_norm", "grad_norm", step->grad_norm},
        {"lr", "lr", step->lr},
        {"seconds", "time_metrics/seconds", numbers->seconds},
        {"seconds_left", "time_metrics/left(s)", numbers->left < 0 ? NAN : numbers->left},
        {"memory_gib", "memory/max_reserved(GiB)", numbers->memory_gib},
        {"tps", "throughput(tps)", numbers->tps},
        {"images_per_s", "throughput(images)", numbers->images},
        {"samples_per_s", "throughput(samples)", numbers->samples},
        {"pairs_per_s", "throughput(pairs)", numbers->pairs},
        {"tflops", "tflops", numbers->tflops},
        {"mfu_percent", "mfu(%)", numbers->mfu},
        {"vision_percent", "flops/vision(%)", numbers->vision},
        {"wait_percent", "time_metrics/wait(%)", numbers->wait},
        {"fill_percent", "rows/fill(%)", numbers->fill},
        {"expert_load", "experts/load", reports->load},
        {"experts_idle_percent", "experts/idle(%)", reports->idle}};
    int count = sizeof list / sizeof *list;
    memcpy(out, list, sizeof list);
    for (int j = 0; j < GROUP_COUNT; j++)
        out[count++] = (number){keys[j], tags[j], step->group_norm[j]};
    const number ranks[] = {
        {"balance", "ranks/rows(max/mean)", step->balance},
        {"context_balance", "ranks/context(max/mean)", step->own_context_balance},
        {"vision_balance", "ranks/vision(max/mean)", step->own_vision_balance}};
    /* balance is above 0 only where there are several ranks. */
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks && step->balance > 0; i++)
        out[count++] = ranks[i];
    return count;
}

static status write_metrics(reporter *reports, const step_report *step, const figures *numbers)
{
    char digest[HASH_TEXT];
    hash_print(step->rows_digest, digest);
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {{"step", step->step},
                  {"targets", reports->sum.targets},
                  {"samples", reports->sum.documents},
                  {"pairs", reports->sum.pairs},
                  {"images", reports->sum.images},
                  {"tokens", reports->sum.tokens},
                  {"patches", reports->sum.patches}};
    number reals[MOST_REALS];
    int count = numbers_of(reports, step, numbers, reals);
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_put_key_int(&writer, counts[i].key, counts[i].value);
    for (int i = 0; i < count; i++)
        json_put_key_real(&writer, reals[i].key, reals[i].value);
    json_put_key_bool(&writer, "skipped", step->skipped);
    if (step->updated[0])
        json_put_key_cstr(&writer, "partial", step->updated);
    json_put_key_cstr(&writer, "rows_digest", digest);
    json_end_object(&writer);
    char *text;
    size_t size;
    TRY(json_writer_take(&writer, &text, &size));
    reports->cut = fprintf(reports->metrics, "%s%s\n", reports->cut ? "\n" : "", text) < 0 ||
                   fflush(reports->metrics) != 0;
    free(text);
    return !reports->cut ? ST_OK
                         : FAIL_IN(ST_IO, reports->path, "write failed: %s", strerror(errno));
}

static status write_events(reporter *reports, const step_report *step, const figures *numbers)
{
    number reals[MOST_REALS];
    scalar list[MOST_REALS];
    int count = numbers_of(reports, step, numbers, reals), kept = 0;
    for (int i = 0; i < count; i++)
        if (isfinite(reals[i].value))
            list[kept++] = (scalar){reals[i].tag, reals[i].value};
    return tensorboard_add(reports->board, step->step, list, kept);
}

/* A disk that refuses a line does not end the run; the user is told once. */
static status spare(reporter *reports, status st)
{
    if (st != ST_IO)
        return st;
    if (!reports->told)
        log_warn("numbers of this run are lost (this is said once): %s", status_text());
    reports->told = true;
    return ST_OK;
}

/* The line fits 120 columns up to step 1,000,000, so a step that was skipped says so in place of the
 * time that was waited. */
static void print_line(const reporter *reports, const figures *numbers)
{
    const step_report *step = &reports->last;
    char tps[DIGITS_TEXT], mfu[16] = "unknown";
    if (isfinite(numbers->mfu))
        snprintf(mfu, sizeof mfu, "%.2f%%", numbers->mfu);
    bar_clear();
    printf("step: %2" PRId64 "  loss: %7.4f  grad_norm: %7.4f  memory: %.1f%%  tps: %s  mfu: %s",
           step->step, step->loss, step->grad_norm, numbers->memory_share,
           digits_with_commas(llround(numbers->tps), tps), mfu);
    printf("  pairs/s: %.*f", numbers->pairs < 100.0 ? 1 : 0, numbers->pairs);
    if (!step->skipped)
        printf("  wait: %.1f%%", numbers->wait);
    puts(step->updated[0] ? "  partial" : step->skipped ? "  skipped" : "");
}

static status print_last(reporter *reports)
{
    const step_report *step = &reports->last;
    figures numbers;
    TRY(figures_of(reports, &numbers));
    if (reports->steps)
        reports->step_seconds = numbers.seconds / (double)reports->steps;
    numbers.left = seconds_left(reports);
    monitor_line(reports->watch, &(line_rates){.tokens = numbers.tps,
                                               .mfu = numbers.mfu / 100,
                                               .memory_used = numbers.memory_used,
                                               .memory_total = numbers.memory_total});
    print_line(reports, &numbers);
    if (fflush(stdout) != 0 && !reports->mute) {
        reports->mute = true;
        log_warn("standard output can no longer be written (%s); the run continues",
                 strerror(errno));
    }
    if (reports->metrics)
        TRY(spare(reports, write_metrics(reports, step, &numbers)));
    if (reports->board)
        TRY(spare(reports, write_events(reports, step, &numbers)));
    reports->steps = 0;
    memset(&reports->sum, 0, sizeof reports->sum);
    reports->since_ns = numbers.next_ns;
    reports->unprinted = false;
    return ST_OK;
}

static void draw_bar(const reporter *reports)
{
    const int64_t step = reports->last.step, steps = reports->session->schedule.steps;
    if (steps > 0)
        bar_draw((double)step / (double)steps, seconds_left(reports),
                 "step %" PRId64 " of %" PRId64, step, steps);
    else
        bar_draw(-1.0, -1.0, "step %" PRId64, step);
}

status reporter_step(reporter *reports, const step_report *step)
{
    add_report(&reports->sum, step);
    reports->last = *step;
    expert_load(reports, step); /* now, before the session reuses the memory of the counts */
    reports->steps++;
    reports->unprinted = true;
    if (step->step == 1 || step->step % reports->log_freq == 0)
        TRY(print_last(reports));
    draw_bar(reports);
    return ST_OK;
}

status reporter_finish(reporter *reports)
{
    bar_clear();
    return reports->unprinted ? print_last(reports) : ST_OK;
}

void reporter_rest(reporter *reports, int64_t ns)
{
    reports->since_ns += ns;
}

/* Appends a line to eval.jsonl, which is opened anew for each of the few. If the step has a line
 * already, because it was evaluated on the way and again as the last, that line is set aside. */
static status append_evaluation(const reporter *reports, int64_t step, const number *list,
                                int count)
{
    char folder[STATUS_PATH_MAX], path[STATUS_PATH_MAX], *text;
    size_t size;
    int64_t moved;
    json_writer writer;
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(reports->path) - strlen("/metrics.jsonl")),
             reports->path);
    snprintf(path, sizeof path, "%.*seval.jsonl",
             (int)(strlen(reports->path) - strlen("metrics.jsonl")), reports->path);
    TRY(rewind_lines(folder, "eval.jsonl", step - 1, &moved));
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "step", step);
    for (int i = 0; i < count; i++)
        json_put_key_real(&writer, list[i].key, list[i].value);
    json_end_object(&writer);
    TRY(json_writer_take(&writer, &text, &size));
    FILE *file = fopen(path, "ae");
    bool bad = !file || fprintf(file, "%s\n", text) < 0;
    bad = (file && fclose(file) != 0) || bad;
    free(text);
    return bad ? FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno)) : ST_OK;
}

status reporter_evaluated(reporter *reports, int64_t step, const evaluation *result, bool swapped)
{
    enum { MOST_FIGURES = 8 };
    number list[MOST_FIGURES] = {{"held_out_loss", "eval/loss", result->loss},
                                 {"accuracy_percent", "eval/accuracy(%)",
                                  evaluation_percent(result->right, result->answers)}};
    scalar scalars[MOST_FIGURES];
    int count = 2;
    monitor_evaluated(reports->watch, result);
    if (result->documents != result->answers)
        list[count++] = (number){"documents_percent", "eval/documents(%)",
                                 evaluation_percent(result->documents_right, result->documents)};
    if (swapped && result->swapped) {
        list[count++] = (number){"swapped_percent", "eval/swapped(%)",
                                 evaluation_percent(result->swapped_right, result->swapped)};
        list[count++] = (number){"own_percent", "eval/own(%)",
                                 evaluation_percent(result->own_right, result->swapped)};
    }
    if (isfinite(result->chance_percent))
        list[count++] = (number){"chance_percent", "eval/chance(%)", result->chance_percent};
    if (result->vqa.all.count)
        list[count++] = (number){"vqa_percent", "eval/vqa(%)", vqa_share_percent(&result->vqa.all)};
    for (int i = 0; i < count; i++)
        scalars[i] = (scalar){list[i].tag, list[i].value};
    if (reports->metrics)
        TRY(spare(reports, append_evaluation(reports, step, list, count)));
    return reports->board ? spare(reports, tensorboard_add(reports->board, step, scalars, count))
                          : ST_OK;
}
