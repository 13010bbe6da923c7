/* SPDX-License-Identifier: Apache-2.0 */
/* html.c: reads metrics.jsonl and eval.jsonl into points. Each curve of the table below that has
 * several of them is drawn as an SVG with round numbers on its axes; one with a single point
 * becomes a fact, since a plot of one dot shows nothing. */
#include "trainer/report/html.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/words.h"
#include "common/json/json.h"

/* The curves of the page, in their order: keys of metrics.jsonl or, with held_out,
 * of eval.jsonl. */
static const struct curve {
    const char *key, *title, *unit;
    bool logarithmic, smooth, held_out;
} curves[] = {
    {"loss", "loss", "mean over targets", .logarithmic = true, .smooth = true},
    {"held_out_loss", "held-out loss", "mean over targets", .logarithmic = true, .held_out = true},
    {"accuracy_percent", "held-out accuracy", "% of answers", .held_out = true},
    {"vqa_percent", "generated answers", "% agreement with annotators", .held_out = true},
    {"grad_norm", "gradient norm", "before clipping", .logarithmic = true},
    {"lr", "learning rate", ""},
    {"tps", "tokens per second", "real tokens"},
    {"pairs_per_s", "questions with their answers per second", "all devices together"},
    {"mfu_percent", "MFU", "%"},
    {"wait_percent", "waiting for rows", "% of the time"},
    {"fill_percent", "fill", "% of the rows' capacity"},
    {"expert_load", "expert load", "busiest over mean, mean of layers"},
    {"memory_gib", "memory", "GiB"},
};
enum {
    N_CURVES = sizeof curves / sizeof *curves,
    WIDTH = 560,
    HEIGHT = 240,
    LEFT = 62,
    RIGHT = 24, /* room for half of the last number of the axis below */
    TOP = 30,
    BOTTOM = 44,
    TICKS = 4,          /* an axis has about this many parts */
    FEW = 40,           /* up to this many points are drawn as dots too */
    MOST_POINTS = 2000, /* of a curve; there are fewer pixels */
    SMOOTH_PARTS = 8,   /* the smoothed line averages over about this part of the points .. */
    SMOOTH_MOST = 50,   /* .. and at most over this many */
    FACTS_MAX = 48,
};

typedef struct point {
    int64_t step, line;
    double seconds; /* of the steps that the line counts */
    double value[N_CURVES];
} point;

typedef struct points {
    point *list; /* heap */
    int64_t count;
} points;

static int by_step_then_line(const void *left, const void *right)
{
    const point *first = left, *second = right;
    if (first->step != second->step)
        return first->step < second->step ? -1 : 1;
    return (first->line > second->line) - (first->line < second->line);
}

/* Reads the last line of every step, in rising order of steps. */
static status read_points(const char *path, point **out, int64_t *out_n)
{
    point *list = NULL;
    int64_t count = 0, capacity = 0, kept = 0, number = 0;
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    status st = ST_OK;
    for (ssize_t size; st == ST_OK && (size = getline(&line, &room, file)) > 0; number++) {
        json_value *value = NULL;
        if (json_parse(line, (size_t)size, path, &value) != ST_OK)
            continue; /* a line that was cut short when a process died */
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            point *more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more)
                st = FAIL(ST_NO_MEMORY, "no memory for the report");
            list = more ? more : list;
        }
        if (st == ST_OK) {
            point *spot = &list[count++];
            spot->step = json_int(json_find(value, "step"), 0);
            spot->line = number;
            spot->seconds = json_real(json_find(value, "seconds"), 0);
            for (int j = 0; j < N_CURVES; j++)
                spot->value[j] = json_real(json_find(value, curves[j].key), NAN);
        }
        json_free(&value);
    }
    free(line);
    fclose(file);
    if (count)
        qsort(list, (size_t)count, sizeof *list, by_step_then_line);
    for (int64_t i = 0; i < count; i++)
        if (i + 1 == count || list[i + 1].step != list[i].step)
            list[kept++] = list[i];
    *out = list;
    *out_n = kept;
    return st;
}

static bool can_draw(const point *spot, int curve)
{
    return isfinite(spot->value[curve]) && (!curves[curve].logarithmic || spot->value[curve] > 0);
}

/* How many points of a curve can be drawn, and which are the first and the last of them. */
static int64_t count_drawn(const points *all, int curve, const point **first, const point **last)
{
    int64_t count = 0;
    *first = *last = NULL;
    for (int64_t i = 0; i < all->count; i++) {
        if (!can_draw(&all->list[i], curve))
            continue;
        *last = &all->list[i];
        *first = *first ? *first : *last;
        count++;
    }
    return count;
}

/* The smallest and the largest value that can be drawn; false if there are none. */
static bool range_of(const point *spot, int64_t count, int curve, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        double value = spot[i].value[curve];
        if (!can_draw(&spot[i], curve))
            continue;
        *low = fmin(*low, value);
        *high = fmax(*high, value);
    }
    if (!(*low <= *high))
        return false;
    if (*low == *high) { /* put a flat line in the middle */
        double pad = fabs(*low) * 0.1;
        *low = curves[curve].logarithmic ? *low / 2 : *low - pad;
        *high += *high != 0 ? pad : 1;
    }
    return true;
}

typedef struct frame_of {
    double low, high, first, last;
    bool logarithmic;
} frame_of;

static double x_of(const frame_of *axes, double step)
{
    double extent = axes->last > axes->first ? axes->last - axes->first : 1;
    return LEFT + (WIDTH - LEFT - RIGHT) * (step - axes->first) / extent;
}

static double y_of(const frame_of *axes, double value)
{
    double low = axes->low, high = axes->high;
    if (axes->logarithmic) {
        low = log(low);
        high = log(high);
        value = log(value);
    }
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low);
}

/* The next number of 1, 2, 5 x 10^k from x on. */
static double round_up(double value)
{
    static const double steps[] = {1, 2, 5, 10};
    double unit = pow(10, floor(log10(value)));
    int i = 0;
    while (i < 3 && steps[i] * unit < value * (1 - 1e-9))
        i++;
    return steps[i] * unit;
}

static void put_y(FILE *file, const frame_of *axes, double value)
{
    fprintf(file,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"y\" x=\"%d\" y=\"%.1f\">%.6g</text>\n",
            LEFT, WIDTH - RIGHT, y_of(axes, value), y_of(axes, value), LEFT - 6,
            y_of(axes, value) + 4, value);
}

/* Draws the axes with round numbers, 1, 2 or 5 x 10^k. A logarithmic axis over more than three
 * decades has only powers of ten. */
static void put_axes(FILE *file, const frame_of *axes)
{
    const double decades = log10(axes->high) - log10(axes->low), steps = axes->last - axes->first;
    double step = round_up((axes->high - axes->low) / TICKS);
    if (axes->logarithmic && decades >= 1)
        for (double value = round_up(axes->low); value <= axes->high;
             value = round_up(value * (decades > 3 ? 6 : 1.1)))
            put_y(file, axes, value);
    else
        for (double line = ceil(axes->low / step - 1e-9); line * step <= axes->high + 1e-9 * step;
             line++)
            put_y(file, axes, line * step + 0.0); /* + 0.0 turns -0 into 0 */
    step = steps > 0 ? fmax(1, round_up(steps / (2 * TICKS))) : 1;
    for (double step_at = ceil(axes->first / step) * step; step_at <= axes->last; step_at += step)
        fprintf(file, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.0f</text>\n", x_of(axes, step_at),
                HEIGHT - BOTTOM + 16, step_at);
    fprintf(file, "<text class=\"x\" x=\"%d\" y=\"%d\">step</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 8);
}

/* Draws lines between points that lie beside each other, and leaves a gap where there is no number.
 * With a width the line is an exponential mean over about so many points, on a logarithmic axis of
 * the logarithms. */
static void put_line(FILE *file, const points *all, const frame_of *axes, int curve, double width,
                     const char *class)
{
    const int64_t every = width > 0 ? 1 : all->count / MOST_POINTS + 1;
    const double keep = width > 0 ? 1 - 2 / (width + 1) : 0;
    double sum = 0, weight = 0; /* the mean begins at the first point, without a value before it */
    bool open = false;
    for (int64_t i = 0; i < all->count; i += every) {
        const double value = all->list[i].value[curve];
        const bool drawn = can_draw(&all->list[i], curve);
        if (drawn && !open)
            fprintf(file, "<polyline class=\"%s\" points=\"", class);
        if (drawn) {
            sum = keep * sum + (1 - keep) * (axes->logarithmic ? log(value) : value);
            weight = keep * weight + 1 - keep;
            fprintf(file, "%.1f,%.1f ", x_of(axes, (double)all->list[i].step),
                    y_of(axes, axes->logarithmic ? exp(sum / weight) : sum / weight));
        }
        if (!drawn && open)
            fputs("\"/>\n", file);
        open = drawn;
    }
    if (open)
        fputs("\"/>\n", file);
}

static void put_curve(FILE *file, const points *all, int which)
{
    const struct curve *is = &curves[which];
    const point *first, *last;
    const int64_t count = count_drawn(all, which, &first, &last);
    const double parts = floor((double)count / SMOOTH_PARTS);
    const double width = is->smooth && parts >= 2 ? fmin(parts, SMOOTH_MOST) : 0;
    frame_of axes = {.first = (double)all->list[0].step,
                     .last = (double)all->list[all->count - 1].step,
                     .logarithmic = is->logarithmic};
    if (count < 2 || !range_of(all->list, all->count, which, &axes.low, &axes.high))
        return;
    fprintf(file,
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s by step: %.5g at step "
            "%" PRId64 ", %.5g at step %" PRId64 "; between %.5g and %.5g\">"
            "<text class=\"title\" x=\"%d\" y=\"18\">%s</text>"
            "<text class=\"unit\" x=\"%d\" y=\"18\">%s%s</text>\n",
            WIDTH, HEIGHT, is->title, first->value[which], first->step, last->value[which],
            last->step, axes.low, axes.high, LEFT, is->title, WIDTH - RIGHT, is->unit,
            width > 0 ? "; the strong line is smoothed" : "");
    put_axes(file, &axes);
    put_line(file, all, &axes, which, 0, width > 0 ? "raw" : "line");
    for (int64_t i = 0; i < all->count && all->count <= FEW && width == 0; i++)
        if (can_draw(&all->list[i], which))
            fprintf(file, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n",
                    x_of(&axes, (double)all->list[i].step), y_of(&axes, all->list[i].value[which]));
    if (width > 0)
        put_line(file, all, &axes, which, width, "line");
    fputs("</svg>\n", file);
}

static void duration_text(double seconds, char *out, size_t size)
{
    const int64_t whole = llround(seconds), hours = whole / 3600, minutes = whole / 60 % 60;
    size_t count = 0;
    out[0] = 0;
    if (hours > 0)
        count = words_add(out, size, count, "%" PRId64 " h ", hours);
    if (whole >= 60)
        count = words_add(out, size, count, "%" PRId64 " min ", minutes);
    if (hours == 0)
        words_add(out, size, count, "%" PRId64 " s", whole % 60);
}

/* Adds what the points tell: how long the steps took, and the curves of a single point. Held-out
 * ones are left out, because the last evaluation is among the caller's facts. */
static int add_facts(const points all[2], html_fact *facts, int count)
{
    const point *first, *last;
    double seconds = 0;
    for (int64_t i = 0; i < all[0].count; i++)
        seconds += all[0].list[i].seconds;
    facts[count] = (html_fact){.name = "duration", .note = "of the training steps"};
    duration_text(seconds, facts[count].value, sizeof facts[count].value);
    count++;
    for (int j = 0; j < N_CURVES && count < FACTS_MAX; j++) {
        if (curves[j].held_out || count_drawn(&all[0], j, &first, &last) != 1)
            continue;
        facts[count] = (html_fact){.name = curves[j].title};
        snprintf(facts[count].value, sizeof facts[count].value, "%.5g", last->value[j]);
        snprintf(facts[count].note, sizeof facts[count].note, "%s%sat step %" PRId64,
                 curves[j].unit, curves[j].unit[0] ? ", " : "", last->step);
        count++;
    }
    return count;
}

static const char style[] =
    "pre{background:var(--panel);padding:1em;overflow:auto;font-size:13px}"
    "details{margin-top:16px}.plots{display:grid;gap:16px;"
    "grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr))}"
    "svg{width:100%;box-sizing:border-box;border:1px solid var(--line);border-radius:4px}"
    "svg .grid{stroke:var(--line)}svg polyline{fill:none;stroke:var(--mark);stroke-width:2}"
    "svg .raw{stroke-width:1.2;opacity:.4}"
    "svg circle{fill:var(--mark)}svg text{font-size:12px;fill:var(--faint)}"
    "svg .title{font-size:14px;font-weight:600;fill:var(--ink)}svg .y,svg .unit{text-anchor:end}"
    "svg .x{text-anchor:middle}"
    "@media(max-width:600px){svg text{font-size:15px}svg .title{font-size:17px}}";

static void put_page(FILE *file, html_mark mark, const char *title, const html_fact *told,
                     int count, const char *config, const points all[2])
{
    html_fact facts[FACTS_MAX];
    count = count < FACTS_MAX - 1 ? count : FACTS_MAX - 1;
    memcpy(facts, told, (size_t)count * sizeof *facts);
    html_page_begin(file, title, style, mark);
    html_page_facts(file, facts, add_facts(all, facts, count));
    fputs("<div class=\"plots\">\n", file);
    for (int i = 0; i < N_CURVES; i++)
        if (all[curves[i].held_out].count > 0)
            put_curve(file, &all[curves[i].held_out], i);
    fputs("</div>\n<details><summary>All options of the run</summary><pre>", file);
    html_put_text(file, config);
    fputs("</pre></details>\n", file);
    html_page_end(file);
}

status html_report(const char *folder, html_mark mark, const char *title, const html_fact *facts,
                   int count, const char *config)
{
    char metrics[STATUS_PATH_MAX], held_out[STATUS_PATH_MAX];
    char path[STATUS_PATH_MAX];
    FILE *file;
    points all[2] = {{0}}; /* [0]: steps, [1]: evaluations */
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", folder);
    snprintf(held_out, sizeof held_out, "%s/eval.jsonl", folder);
    snprintf(path, sizeof path, "%s/report.html", folder);
    status st = read_points(metrics, &all[0].list, &all[0].count);
    if (st == ST_OK && access(held_out, F_OK) == 0)
        st = read_points(held_out, &all[1].list, &all[1].count);
    if (st == ST_OK)
        st = html_page_open(path, &file);
    if (st == ST_OK) {
        put_page(file, mark, title, facts, count, config, all);
        st = html_page_close(path, &file);
    }
    free(all[0].list);
    free(all[1].list);
    return st;
}
