/* html.c: reads metrics.jsonl and eval.jsonl into points and draws each curve of the table below as
 * an SVG with round numbers on its axes. */
#include "trainer/report/html.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/html_text.h"
#include "common/json/json.h"

/* The curves of the page, in their order: keys of metrics.jsonl or, with held_out, of eval.jsonl.
 */
static const struct curve {
    const char *key, *title, *unit;
    bool logarithmic, held_out;
} curves[] = {
    {"loss", "loss", "mean over targets", false},
    {"held_out_loss", "held-out loss", "mean over targets", false, true},
    {"accuracy_percent", "held-out accuracy", "% of documents", false, true},
    {"vqa_percent", "VQA accuracy", "official, %", false, true},
    {"grad_norm", "gradient norm", "before clipping", true},
    {"lr", "learning rate", "", false},
    {"tps", "tokens per second", "real tokens", false},
    {"mfu_percent", "MFU", "%", false},
    {"wait_percent", "waiting for rows", "% of the time", false},
    {"fill_percent", "fill", "% of the rows' capacity", false},
    {"expert_load", "expert load", "busiest over mean, mean of layers", false},
    {"memory_gib", "memory", "GiB", false},
};
enum {
    N_CURVES = sizeof curves / sizeof *curves,
    WIDTH = 560,
    HEIGHT = 220,
    LEFT = 62,
    RIGHT = 24, /* room for half of the last number of the axis below */
    TOP = 30,
    BOTTOM = 28,
    TICKS = 4,          /* an axis has about this many parts */
    FEW = 40,           /* up to this many points are drawn as dots too */
    MOST_POINTS = 2000, /* of a curve; there are fewer pixels */
};

typedef struct point {
    int64_t step, line;
    double y[N_CURVES];
} point;

typedef struct points {
    point *list; /* heap */
    int64_t n;
} points;

static int by_step_then_line(const void *a, const void *b)
{
    const point *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

/* Reads the last line of every step, in rising order of steps. */
static status read_points(const char *path, point **out, int64_t *out_n)
{
    point *list = NULL;
    int64_t n = 0, capacity = 0, kept = 0, number = 0;
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    status st = ST_OK;
    for (ssize_t size; st == ST_OK && (size = getline(&line, &room, f)) > 0; number++) {
        json_value *v = NULL;
        if (json_parse(line, (size_t)size, path, &v) != ST_OK)
            continue; /* a line that was cut short when a process died */
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            point *more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more)
                st = FAIL(ST_NO_MEMORY, "no memory for the report");
            list = more ? more : list;
        }
        if (st == ST_OK) {
            point *p = &list[n++];
            p->step = json_int(json_find(v, "step"), 0);
            p->line = number;
            for (int c = 0; c < N_CURVES; c++)
                p->y[c] = json_real(json_find(v, curves[c].key), NAN);
        }
        json_free(&v);
    }
    free(line);
    fclose(f);
    if (n)
        qsort(list, (size_t)n, sizeof *list, by_step_then_line);
    for (int64_t i = 0; i < n; i++)
        if (i + 1 == n || list[i + 1].step != list[i].step)
            list[kept++] = list[i];
    *out = list;
    *out_n = kept;
    return st;
}

/* The smallest and the largest value that can be drawn; false if there are none. */
static bool range_of(const point *p, int64_t n, int c, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double y = p[i].y[c];
        if (!isfinite(y) || (curves[c].logarithmic && y <= 0))
            continue;
        *low = fmin(*low, y);
        *high = fmax(*high, y);
    }
    if (!(*low <= *high))
        return false;
    if (*low == *high) { /* put a flat line in the middle */
        double pad = fabs(*low) * 0.1;
        *low = curves[c].logarithmic ? *low / 2 : *low - pad;
        *high += *high != 0 ? pad : 1;
    }
    return true;
}

typedef struct frame_of {
    double low, high, first, last;
    bool logarithmic;
} frame_of;

static double x_of(const frame_of *f, double step)
{
    double span = f->last > f->first ? f->last - f->first : 1;
    return LEFT + (WIDTH - LEFT - RIGHT) * (step - f->first) / span;
}

static double y_of(const frame_of *f, double y)
{
    double low = f->low, high = f->high;
    if (f->logarithmic) {
        low = log(low);
        high = log(high);
        y = log(y);
    }
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low);
}

/* The next number of 1, 2, 5 x 10^k from x on. */
static double round_up(double x)
{
    static const double steps[] = {1, 2, 5, 10};
    double unit = pow(10, floor(log10(x)));
    int i = 0;
    while (i < 3 && steps[i] * unit < x * (1 - 1e-9))
        i++;
    return steps[i] * unit;
}

static void put_y(FILE *f, const frame_of *a, double y)
{
    fprintf(f,
            "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"y\" x=\"%d\" y=\"%.1f\">%.6g</text>\n",
            LEFT, WIDTH - RIGHT, y_of(a, y), y_of(a, y), LEFT - 6, y_of(a, y) + 4, y);
}

/* Draws the axes with round numbers, 1, 2 or 5 x 10^k. A logarithmic axis over more than three
 * decades has only powers of ten. */
static void put_axes(FILE *f, const frame_of *a)
{
    const double span = log10(a->high) - log10(a->low), steps = a->last - a->first;
    double step = round_up((a->high - a->low) / TICKS);
    if (a->logarithmic && span >= 1)
        for (double y = round_up(a->low); y <= a->high; y = round_up(y * (span > 3 ? 6 : 1.1)))
            put_y(f, a, y);
    else
        for (double i = ceil(a->low / step - 1e-9); i * step <= a->high + 1e-9 * step; i++)
            put_y(f, a, i * step + 0.0); /* + 0.0 turns -0 into 0 */
    step = steps > 0 ? fmax(1, round_up(steps / (2 * TICKS))) : 1;
    for (double x = ceil(a->first / step) * step; x <= a->last; x += step)
        fprintf(f, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.0f</text>\n", x_of(a, x), HEIGHT - 10,
                x);
}

static void put_curve(FILE *f, const point *p, int64_t n, int c)
{
    frame_of a = {.first = (double)p[0].step,
                  .last = (double)p[n - 1].step,
                  .logarithmic = curves[c].logarithmic};
    if (!range_of(p, n, c, &a.low, &a.high))
        return;
    fprintf(f,
            "<svg viewBox=\"0 0 %d %d\"><text class=\"title\" x=\"%d\" y=\"18\">%s</text>"
            "<text class=\"unit\" x=\"%d\" y=\"18\">%s</text>\n",
            WIDTH, HEIGHT, LEFT, curves[c].title, WIDTH - RIGHT, curves[c].unit);
    put_axes(f, &a);
    int64_t every = n / MOST_POINTS + 1;
    bool open = false;
    for (int64_t i = 0; i < n; i += every) {
        double y = p[i].y[c];
        bool drawn = isfinite(y) && (!a.logarithmic || y > 0);
        if (drawn && !open)
            fputs("<polyline points=\"", f);
        if (drawn)
            fprintf(f, "%.1f,%.1f ", x_of(&a, (double)p[i].step), y_of(&a, y));
        if (!drawn && open)
            fputs("\"/>\n", f); /* leave a gap where there is no number */
        open = drawn;
    }
    if (open)
        fputs("\"/>\n", f);
    for (int64_t i = 0; i < n && n <= FEW; i++)
        if (isfinite(p[i].y[c]) && (!a.logarithmic || p[i].y[c] > 0))
            fprintf(f, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n", x_of(&a, (double)p[i].step),
                    y_of(&a, p[i].y[c]));
    fputs("</svg>\n", f);
}

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1140px;padding:0 1em;"
    "color:#1c2733;background:#fff}h1{font-size:1.4em}pre{background:#f3f5f8;padding:1em;"
    "overflow:auto;font-size:13px}details{margin-top:16px}.plots{display:flex;flex-wrap:wrap;gap:"
    "16px}"
    "svg{width:540px;max-width:100%;border:1px solid #d9dfe6;border-radius:4px}"
    "svg .grid{stroke:#e6eaef}svg polyline{fill:none;stroke:#1f6feb;stroke-width:1.6}"
    "svg circle{fill:#1f6feb}svg text{font-size:11px;fill:#57636f}"
    "svg .title{font-size:14px;font-weight:600;fill:#1c2733}svg .y,svg .unit{text-anchor:end}"
    "svg .x{text-anchor:middle}";

static void put_page(FILE *f, const char *title, const char *summary, const char *config,
                     const points *all)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", f);
    html_put_text(f, title);
    fprintf(f, "</title><style>%s</style></head><body>\n<h1>", style);
    html_put_text(f, title);
    fputs("</h1>\n<pre>", f);
    html_put_text(f, summary);
    fputs("</pre>\n<div class=\"plots\">\n", f);
    for (int c = 0; c < N_CURVES; c++) {
        const points *p = &all[curves[c].held_out];
        if (p->n > 0)
            put_curve(f, p->list, p->n, c);
    }
    fputs("</div>\n<details><summary>options</summary><pre>", f);
    html_put_text(f, config);
    fputs("</pre></details>\n</body></html>\n", f);
}

status html_report(const char *folder, const char *title, const char *summary, const char *config)
{
    char metrics[STATUS_PATH_MAX], held_out[STATUS_PATH_MAX];
    char path[STATUS_PATH_MAX], aside[STATUS_PATH_MAX];
    points all[2] = {{0}}; /* [0]: steps, [1]: evaluations */
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", folder);
    snprintf(held_out, sizeof held_out, "%s/eval.jsonl", folder);
    snprintf(path, sizeof path, "%s/report.html", folder);
    snprintf(aside, sizeof aside, "%s/.report.html.tmp", folder);
    status st = read_points(metrics, &all[0].list, &all[0].n);
    if (st == ST_OK && access(held_out, F_OK) == 0)
        st = read_points(held_out, &all[1].list, &all[1].n);
    FILE *f = st == ST_OK ? fopen(aside, "we") : NULL;
    if (st == ST_OK && !f)
        st = FAIL_IN(ST_CANT_CREATE, aside, "%s", strerror(errno));
    if (f) {
        put_page(f, title, summary, config, all);
        bool ok = !ferror(f);
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(aside, path) != 0)
            st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    }
    free(all[0].list);
    free(all[1].list);
    return st;
}
