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

#include "common/base/html_text.h"
#include "common/base/words.h"
#include "common/json/json.h"

/* The curves of the page, in their order: keys of metrics.jsonl or, with held_out, of eval.jsonl.
 */
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
            p->seconds = json_real(json_find(v, "seconds"), 0);
            for (int c = 0; c < N_CURVES; c++)
                p->value[c] = json_real(json_find(v, curves[c].key), NAN);
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

static bool can_draw(const point *p, int c)
{
    return isfinite(p->value[c]) && (!curves[c].logarithmic || p->value[c] > 0);
}

/* How many points of a curve can be drawn, and which are the first and the last of them. */
static int64_t count_drawn(const points *all, int c, const point **first, const point **last)
{
    int64_t n = 0;
    *first = *last = NULL;
    for (int64_t i = 0; i < all->count; i++) {
        if (!can_draw(&all->list[i], c))
            continue;
        *last = &all->list[i];
        *first = *first ? *first : *last;
        n++;
    }
    return n;
}

/* The smallest and the largest value that can be drawn; false if there are none. */
static bool range_of(const point *p, int64_t n, int c, double *low, double *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double y = p[i].value[c];
        if (!can_draw(&p[i], c))
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
        fprintf(f, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.0f</text>\n", x_of(a, x),
                HEIGHT - BOTTOM + 16, x);
    fprintf(f, "<text class=\"x\" x=\"%d\" y=\"%d\">step</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 8);
}

/* Draws lines between points that lie beside each other, and leaves a gap where there is no number.
 * With a span the line is an exponential mean over about so many points, on a logarithmic axis of
 * the logarithms. */
static void put_line(FILE *f, const points *all, const frame_of *a, int c, double span,
                     const char *class)
{
    const int64_t every = span > 0 ? 1 : all->count / MOST_POINTS + 1;
    const double keep = span > 0 ? 1 - 2 / (span + 1) : 0;
    double sum = 0, weight = 0; /* the mean begins at the first point, without a value before it */
    bool open = false;
    for (int64_t i = 0; i < all->count; i += every) {
        const double y = all->list[i].value[c];
        const bool drawn = can_draw(&all->list[i], c);
        if (drawn && !open)
            fprintf(f, "<polyline class=\"%s\" points=\"", class);
        if (drawn) {
            sum = keep * sum + (1 - keep) * (a->logarithmic ? log(y) : y);
            weight = keep * weight + 1 - keep;
            fprintf(f, "%.1f,%.1f ", x_of(a, (double)all->list[i].step),
                    y_of(a, a->logarithmic ? exp(sum / weight) : sum / weight));
        }
        if (!drawn && open)
            fputs("\"/>\n", f);
        open = drawn;
    }
    if (open)
        fputs("\"/>\n", f);
}

static void put_curve(FILE *f, const points *all, int c)
{
    const struct curve *is = &curves[c];
    const point *first, *last;
    const int64_t n = count_drawn(all, c, &first, &last);
    const double parts = floor((double)n / SMOOTH_PARTS);
    const double span = is->smooth && parts >= 2 ? fmin(parts, SMOOTH_MOST) : 0;
    frame_of a = {.first = (double)all->list[0].step,
                  .last = (double)all->list[all->count - 1].step,
                  .logarithmic = is->logarithmic};
    if (n < 2 || !range_of(all->list, all->count, c, &a.low, &a.high))
        return;
    fprintf(f,
            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s by step: %.5g at step "
            "%" PRId64 ", %.5g at step %" PRId64 "; between %.5g and %.5g\">"
            "<text class=\"title\" x=\"%d\" y=\"18\">%s</text>"
            "<text class=\"unit\" x=\"%d\" y=\"18\">%s%s</text>\n",
            WIDTH, HEIGHT, is->title, first->value[c], first->step, last->value[c], last->step,
            a.low, a.high, LEFT, is->title, WIDTH - RIGHT, is->unit,
            span > 0 ? "; the strong line is smoothed" : "");
    put_axes(f, &a);
    put_line(f, all, &a, c, 0, span > 0 ? "raw" : "line");
    for (int64_t i = 0; i < all->count && all->count <= FEW && span == 0; i++)
        if (can_draw(&all->list[i], c))
            fprintf(f, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n",
                    x_of(&a, (double)all->list[i].step), y_of(&a, all->list[i].value[c]));
    if (span > 0)
        put_line(f, all, &a, c, span, "line");
    fputs("</svg>\n", f);
}

static void duration_text(double seconds, char *out, size_t size)
{
    const int64_t whole = llround(seconds), hours = whole / 3600, minutes = whole / 60 % 60;
    size_t n = 0;
    out[0] = 0;
    if (hours > 0)
        n = words_add(out, size, n, "%" PRId64 " h ", hours);
    if (whole >= 60)
        n = words_add(out, size, n, "%" PRId64 " min ", minutes);
    if (hours == 0)
        words_add(out, size, n, "%" PRId64 " s", whole % 60);
}

/* Adds what the points tell: how long the steps took, and the curves of a single point. Held-out
 * ones are left out, because the last evaluation is among the caller's facts. */
static int add_facts(const points all[2], html_fact *facts, int n)
{
    const point *first, *last;
    double seconds = 0;
    for (int64_t i = 0; i < all[0].count; i++)
        seconds += all[0].list[i].seconds;
    facts[n] = (html_fact){.name = "duration", .note = "of the training steps"};
    duration_text(seconds, facts[n].value, sizeof facts[n].value);
    n++;
    for (int c = 0; c < N_CURVES && n < FACTS_MAX; c++) {
        if (curves[c].held_out || count_drawn(&all[0], c, &first, &last) != 1)
            continue;
        facts[n] = (html_fact){.name = curves[c].title};
        snprintf(facts[n].value, sizeof facts[n].value, "%.5g", last->value[c]);
        snprintf(facts[n].note, sizeof facts[n].note, "%s%sat step %" PRId64, curves[c].unit,
                 curves[c].unit[0] ? ", " : "", last->step);
        n++;
    }
    return n;
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

static void put_page(FILE *f, const char *title, const html_fact *told, int n, const char *config,
                     const points all[2])
{
    html_fact facts[FACTS_MAX];
    n = n < FACTS_MAX - 1 ? n : FACTS_MAX - 1;
    memcpy(facts, told, (size_t)n * sizeof *facts);
    html_page_begin(f, title, style);
    html_page_facts(f, facts, add_facts(all, facts, n));
    fputs("<div class=\"plots\">\n", f);
    for (int c = 0; c < N_CURVES; c++)
        if (all[curves[c].held_out].count > 0)
            put_curve(f, &all[curves[c].held_out], c);
    fputs("</div>\n<details><summary>All options of the run</summary><pre>", f);
    html_put_text(f, config);
    fputs("</pre></details>\n", f);
    html_page_end(f);
}

status html_report(const char *folder, const char *title, const html_fact *facts, int n,
                   const char *config)
{
    char metrics[STATUS_PATH_MAX], held_out[STATUS_PATH_MAX];
    char path[STATUS_PATH_MAX], aside[STATUS_PATH_MAX];
    points all[2] = {{0}}; /* [0]: steps, [1]: evaluations */
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", folder);
    snprintf(held_out, sizeof held_out, "%s/eval.jsonl", folder);
    snprintf(path, sizeof path, "%s/report.html", folder);
    snprintf(aside, sizeof aside, "%s/.report.html.tmp", folder);
    status st = read_points(metrics, &all[0].list, &all[0].count);
    if (st == ST_OK && access(held_out, F_OK) == 0)
        st = read_points(held_out, &all[1].list, &all[1].count);
    FILE *f = st == ST_OK ? fopen(aside, "we") : NULL;
    if (st == ST_OK && !f)
        st = FAIL_IN(ST_CANT_CREATE, aside, "%s", strerror(errno));
    if (f) {
        put_page(f, title, facts, n, config, all);
        bool ok = !ferror(f);
        ok = fclose(f) == 0 && ok;
        if (!ok || rename(aside, path) != 0)
            st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    }
    free(all[0].list);
    free(all[1].list);
    return st;
}
