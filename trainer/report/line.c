/* line.c: adds up the reports of the steps between two log lines, works out the rates, and writes
 * them to standard output, metrics.jsonl and TensorBoard's files. numbers_of lists every number
 * once, with its key in metrics.jsonl and its name in TensorBoard. */
#include "trainer/report/line.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/digits.h"
#include "common/json/json.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "trainer/model/unit_order.h"
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
    double step_seconds; /* of the steps up to the last line, for the time left */
    /* The steps since the last line: how many, when they began, their sums, the last of them. */
    int64_t steps, since_ns;
    step_report sum, last;
    double load, idle; /* of experts in the last step, see expert_load */
    bool unprinted;    /* `last` has no line yet */
};

static status open_board(reporter *r, const conf *c, const char *folder)
{
    char path[STATUS_PATH_MAX];
    if (!c->metrics_enable_tensorboard || !folder[0])
        return ST_OK;
    snprintf(path, sizeof path, "%s/%s", folder, c->metrics_save_tb_folder);
    return tensorboard_open(path, &r->board);
}

/* All ranks; where the other ranks are simulated, only those that would share a row with this one,
 * since the rows of the rest are not counted. */
static double devices_of(const session *s)
{
    const layout *l = &s->mesh.layout;
    const int64_t n = world_simulated(s->world) ? l->context * l->tensor : l->world;
    return n > 1 ? (double)n : 1.0;
}

status reporter_new(const conf *c, const session *s, const peak_rate *peak, const char *folder,
                    reporter **out)
{
    reporter *r = calloc(1, sizeof *r);
    if (!r)
        return FAIL(ST_NO_MEMORY, "no memory for the reporter");
    r->session = s;
    r->log_freq = c->metrics_log_freq;
    r->mfu_kind = c->metrics_mfu;
    r->peak = *peak;
    r->devices = devices_of(s);
    r->since_ns = clock_ns();
    if (folder[0]) {
        snprintf(r->path, sizeof r->path, "%s/metrics.jsonl", folder);
        r->metrics = fopen(r->path, "a");
        if (!r->metrics) {
            status st = FAIL_IN(ST_CANT_CREATE, r->path, "%s", strerror(errno));
            free(r);
            return st;
        }
    }
    status st = open_board(r, c, folder);
    if (st != ST_OK) {
        reporter_free(&r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void reporter_free(reporter **held)
{
    reporter *r = *held;
    if (!r)
        return;
    if (r->metrics)
        fclose(r->metrics);
    tensorboard_close(&r->board);
    free(r);
    *held = NULL;
}

static void add_report(step_report *sum, const step_report *s)
{
    sum->tokens += s->tokens;
    sum->row_capacity += s->row_capacity;
    sum->patches += s->patches;
    sum->documents += s->documents;
    sum->images += s->images;
    sum->targets += s->targets;
    sum->wait_ns += s->wait_ns;
    flops_add(&sum->flops, &s->flops);
}

typedef struct figures {
    int64_t until_ns; /* when the steps of this line ended */
    int64_t next_ns;  /* when those of the next one began */
    double seconds, memory_gib, memory_share, tps, tflops, mfu, vision, wait, fill;
    double images, samples; /* per second */
    double left;            /* seconds; below 0: not known */
} figures;

/* Works out how evenly the last micro-batch was routed: rows of the busiest expert over the mean,
 * averaged over the layers of this rank's pipeline stage; and the percentage of experts that were
 * given no row. */
static void expert_load(reporter *r, const step_report *step)
{
    const session *s = r->session;
    const int64_t experts = s->dims.text.experts;
    int64_t judged = 0, idle = 0;
    r->load = r->idle = NAN;
    if (!step->expert_count)
        return;
    double sum = 0.0;
    const stage_part part = stage_part_of(&s->dims, &s->mesh.layout, s->mesh.place.pipeline);
    for (int64_t l = part.first; l < part.end; l++) {
        int64_t total = 0, most = 0;
        if (!dims_layer_is_moe(&s->dims, l))
            continue;
        for (int64_t e = 0; e < experts; e++) {
            int64_t n = step->expert_count[l * experts + e];
            total += n;
            most = n > most ? n : most;
            idle += n == 0;
        }
        sum += total ? (double)(most * experts) / (double)total : 1.0;
        judged++;
    }
    if (judged) {
        r->load = sum / (double)judged;
        r->idle = 100.0 * (double)idle / (double)(judged * experts);
    }
}

/* Seconds that the rest of the run takes at the last line's pace; below 0: not known. */
static double seconds_left(const reporter *r)
{
    int64_t steps = r->session->schedule.steps;
    if (steps <= 0 || r->step_seconds <= 0.0)
        return -1.0;
    return (double)(steps - r->last.step) * r->step_seconds;
}

static status figures_of(reporter *r, figures *f)
{
    const step_report *sum = &r->sum;
    const session *s = r->session;
    size_t used, total;
    /* Taken before anything here waits for the device, since further steps may already be queued.
     */
    f->until_ns = clock_ns();
    f->seconds = (double)(f->until_ns - r->since_ns) * 1e-9;
    TRY(s->device->backend->memory(s->device, &used, &total));
    f->memory_gib = (double)used / 1073741824.0;
    f->memory_share = total ? 100.0 * (double)used / (double)total : 0.0;
    /* Tokens and FLOPs of one device. metrics.mfu torchtitan counts whole rows with their padding,
     * as torchtitan does; otherwise only what the rows really hold counts. */
    bool titan = r->mfu_kind == MFU_TORCHTITAN;
    f->tps = (double)(titan ? sum->row_capacity : sum->tokens) / f->seconds / r->devices;
    double work = titan ? (double)sum->row_capacity *
                              dims_flops_torchtitan(&s->dims, s->conf->training_seq_len)
                        : (double)sum->flops.training;
    work /= r->devices;
    f->tflops = work / f->seconds * 1e-12;
    const int64_t before = clock_ns();
    TRY(speed_share(s->stream, work / f->seconds, &r->peak, &f->mfu));
    f->mfu *= 100.0;
    f->next_ns = f->until_ns + clock_ns() - before; /* the peak may have been measured again */
    double vision = (double)(sum->flops.patch_embed + sum->flops.vision_blocks +
                             sum->flops.vision_attention + sum->flops.mergers);
    f->vision = sum->flops.forward ? 100.0 * vision / (double)sum->flops.forward : 0.0;
    f->wait = 100.0 * (double)sum->wait_ns * 1e-9 / f->seconds;
    f->fill = sum->row_capacity ? 100.0 * (double)sum->tokens / (double)sum->row_capacity : 0.0;
    f->images = (double)sum->images / f->seconds;
    f->samples = (double)sum->documents / f->seconds;
    return ST_OK;
}

enum { MOST_REALS = 32 };

/* A number of a line: its key in metrics.jsonl, and its name in TensorBoard, which is torchtitan's
 * where torchtitan has such a number. */
typedef struct number {
    const char *key, *tag;
    double value;
} number;

static int numbers_of(const reporter *r, const step_report *s, const figures *f,
                      number out[MOST_REALS])
{
    static const char *const keys[GROUP_COUNT] = {"grad_norm_vision", "grad_norm_merger",
                                                  "grad_norm_text", "grad_norm_router",
                                                  "grad_norm_experts"};
    static const char *const tags[GROUP_COUNT] = {"grad_norm/vision", "grad_norm/merger",
                                                  "grad_norm/text", "grad_norm/router",
                                                  "grad_norm/experts"};
    const number list[] = {{"loss", "loss_metrics/global_avg_loss", s->loss},
                           {"aux", "loss_metrics/router_aux", s->aux},
                           {"grad_norm", "grad_norm", s->grad_norm},
                           {"lr", "lr", s->lr},
                           {"seconds", "time_metrics/seconds", f->seconds},
                           {"seconds_left", "time_metrics/left(s)", f->left < 0 ? NAN : f->left},
                           {"memory_gib", "memory/max_reserved(GiB)", f->memory_gib},
                           {"tps", "throughput(tps)", f->tps},
                           {"images_per_s", "throughput(images)", f->images},
                           {"samples_per_s", "throughput(samples)", f->samples},
                           {"tflops", "tflops", f->tflops},
                           {"mfu_percent", "mfu(%)", f->mfu},
                           {"vision_percent", "flops/vision(%)", f->vision},
                           {"wait_percent", "time_metrics/wait(%)", f->wait},
                           {"fill_percent", "rows/fill(%)", f->fill},
                           {"expert_load", "experts/load", r->load},
                           {"experts_idle_percent", "experts/idle(%)", r->idle}};
    int n = sizeof list / sizeof *list;
    memcpy(out, list, sizeof list);
    for (int g = 0; g < GROUP_COUNT; g++)
        out[n++] = (number){keys[g], tags[g], s->group_norm[g]};
    const number ranks[] = {{"balance", "ranks/rows(max/mean)", s->balance},
                            {"context_balance", "ranks/context(max/mean)", s->own_context_balance},
                            {"vision_balance", "ranks/vision(max/mean)", s->own_vision_balance}};
    /* balance is above 0 only where there are several ranks. */
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks && s->balance > 0; i++)
        out[n++] = ranks[i];
    return n;
}

static status write_metrics(reporter *r, const step_report *s, const figures *f)
{
    char digest[HASH_TEXT];
    hash_print(s->rows_digest, digest);
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {
        {"step", s->step},         {"targets", r->sum.targets}, {"samples", r->sum.documents},
        {"images", r->sum.images}, {"tokens", r->sum.tokens},   {"patches", r->sum.patches}};
    number reals[MOST_REALS];
    int n = numbers_of(r, s, f, reals);
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_put_key_int(&w, counts[i].key, counts[i].value);
    for (int i = 0; i < n; i++)
        json_put_key_real(&w, reals[i].key, reals[i].value);
    json_put_key_bool(&w, "skipped", s->skipped);
    json_put_key_cstr(&w, "rows_digest", digest);
    if (world_simulated(r->session->world))
        json_put_key_cstr(&w, "model", world_simulated(r->session->world));
    json_end_object(&w);
    char *text;
    size_t size;
    TRY(json_writer_take(&w, &text, &size));
    r->cut = fprintf(r->metrics, "%s%s\n", r->cut ? "\n" : "", text) < 0 || fflush(r->metrics) != 0;
    free(text);
    return !r->cut ? ST_OK : FAIL_IN(ST_IO, r->path, "write failed: %s", strerror(errno));
}

static status write_events(reporter *r, const step_report *s, const figures *f)
{
    number reals[MOST_REALS];
    scalar list[MOST_REALS];
    int n = numbers_of(r, s, f, reals), kept = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(reals[i].value))
            list[kept++] = (scalar){reals[i].tag, reals[i].value};
    return tensorboard_add(r->board, s->step, list, kept);
}

/* A disk that refuses a line does not end the run; the user is told once. */
static status spare(reporter *r, status st)
{
    if (st != ST_IO)
        return st;
    if (!r->told)
        log_warn("numbers of this run are lost (this is said once): %s", status_text());
    r->told = true;
    return ST_OK;
}

static void print_line(const reporter *r, const figures *f)
{
    const step_report *s = &r->last;
    const char *simulated = world_simulated(r->session->world);
    const bool is_full = r->session->conf->metrics_line == LINE_FULL;
    char tps[DIGITS_TEXT], mfu[16] = "unknown";
    if (isfinite(f->mfu))
        snprintf(mfu, sizeof mfu, "%.2f%%", f->mfu);
    bar_clear();
    printf("step: %2" PRId64 "  loss: %7.4f  grad_norm: %7.4f  memory: %.2fGiB(%.2f%%)  tps: %s",
           s->step, s->loss, s->grad_norm, f->memory_gib, f->memory_share,
           digits_with_commas(llround(f->tps), tps));
    if (is_full)
        printf("  tflops: %.*f", f->tflops < 1.0 ? 4 : 2, f->tflops);
    printf("  mfu: %s", mfu);
    if (is_full)
        printf("  vision: %.0f%%", f->vision);
    printf("  wait: %.1f%%", f->wait);
    if (is_full)
        printf("  fill: %.1f%%", f->fill);
    printf("%s%s%s\n", s->skipped ? "  skipped" : "", simulated ? "  " : "",
           simulated ? simulated : "");
}

static status print_last(reporter *r)
{
    const step_report *s = &r->last;
    figures f;
    TRY(figures_of(r, &f));
    if (r->steps)
        r->step_seconds = f.seconds / (double)r->steps;
    f.left = seconds_left(r);
    print_line(r, &f);
    if (fflush(stdout) != 0 && !r->mute) {
        r->mute = true;
        log_warn("standard output can no longer be written (%s); the run goes on", strerror(errno));
    }
    if (r->metrics)
        TRY(spare(r, write_metrics(r, s, &f)));
    if (r->board)
        TRY(spare(r, write_events(r, s, &f)));
    r->steps = 0;
    memset(&r->sum, 0, sizeof r->sum);
    r->since_ns = f.next_ns;
    r->unprinted = false;
    return ST_OK;
}

static void draw_bar(const reporter *r)
{
    const int64_t step = r->last.step, steps = r->session->schedule.steps;
    if (steps > 0)
        bar_draw((double)step / (double)steps, seconds_left(r), "step %" PRId64 " of %" PRId64,
                 step, steps);
    else
        bar_draw(-1.0, -1.0, "step %" PRId64, step);
}

status reporter_step(reporter *r, const step_report *s)
{
    add_report(&r->sum, s);
    r->last = *s;
    expert_load(r, s); /* now, before the session reuses the memory of the counts */
    r->steps++;
    r->unprinted = true;
    if (s->step == 1 || s->step % r->log_freq == 0)
        TRY(print_last(r));
    draw_bar(r);
    return ST_OK;
}

status reporter_finish(reporter *r)
{
    bar_clear();
    return r->unprinted ? print_last(r) : ST_OK;
}

void reporter_rest(reporter *r, int64_t ns)
{
    r->since_ns += ns;
}

/* Appends a line to eval.jsonl, which is opened anew for each of the few. If the step has a line
 * already, because it was evaluated on the way and again as the last, that line is set aside. */
static status append_evaluation(const reporter *r, int64_t step, const number *list, int n)
{
    char folder[STATUS_PATH_MAX], path[STATUS_PATH_MAX], *text;
    size_t size;
    int64_t moved;
    json_writer w;
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(r->path) - strlen("/metrics.jsonl")),
             r->path);
    snprintf(path, sizeof path, "%.*seval.jsonl", (int)(strlen(r->path) - strlen("metrics.jsonl")),
             r->path);
    TRY(rewind_lines(folder, "eval.jsonl", step - 1, &moved));
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_int(&w, "step", step);
    for (int i = 0; i < n; i++)
        json_put_key_real(&w, list[i].key, list[i].value);
    json_end_object(&w);
    TRY(json_writer_take(&w, &text, &size));
    FILE *f = fopen(path, "ae");
    bool bad = !f || fprintf(f, "%s\n", text) < 0;
    bad = (f && fclose(f) != 0) || bad;
    free(text);
    return bad ? FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno)) : ST_OK;
}

status reporter_evaluated(reporter *r, int64_t step, const evaluation *e, bool swapped)
{
    enum { MOST_FIGURES = 8 };
    number list[MOST_FIGURES] = {
        {"held_out_loss", "eval/loss", e->loss},
        {"accuracy_percent", "eval/accuracy(%)", evaluation_percent(e->right, e->answers)}};
    scalar scalars[MOST_FIGURES];
    int n = 2;
    if (e->documents != e->answers)
        list[n++] = (number){"documents_percent", "eval/documents(%)",
                             evaluation_percent(e->documents_right, e->documents)};
    if (swapped && e->swapped) {
        list[n++] = (number){"swapped_percent", "eval/swapped(%)",
                             evaluation_percent(e->swapped_right, e->swapped)};
        list[n++] =
            (number){"own_percent", "eval/own(%)", evaluation_percent(e->own_right, e->swapped)};
    }
    if (isfinite(e->chance_percent))
        list[n++] = (number){"chance_percent", "eval/chance(%)", e->chance_percent};
    if (e->vqa.all.count)
        list[n++] = (number){"vqa_percent", "eval/vqa(%)", vqa_share_percent(&e->vqa.all)};
    for (int i = 0; i < n; i++)
        scalars[i] = (scalar){list[i].tag, list[i].value};
    if (r->metrics)
        TRY(spare(r, append_evaluation(r, step, list, n)));
    return r->board ? spare(r, tensorboard_add(r->board, step, scalars, n)) : ST_OK;
}
