/* daemon_progress.c: tells people how far the daemon is: by a bar on a terminal, by lines in the
 * log while an index is built, and by the status line of a service manager. */
#include <stdio.h>

#include "common/program/bar.h"
#include "common/program/log.h"
#include "prepd/serve/notify.h"
#include "prepd/serve/shell.h"

static const int64_t TELL_EVERY_NS = 2000000000;

/* The consumer of the train stream that has come furthest; NULL if there is none. */
static const consumer_seat *leading(const dispatch *state)
{
    const consumer_seat *first = NULL;
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        if (consumer->welcomed && consumer->src == &state->train &&
            (!first || consumer->next_row > first->next_row))
            first = consumer;
    return first;
}

static void tell_service_manager(const dispatch *state)
{
    char line[256], place[64] = "no consumer";
    const serve_counts *counts = &state->counts;
    const consumer_seat *consumer = leading(state);
    if (state->train.waits_for) {
        snprintf(line, sizeof(line), "STATUS=waiting for the index, which %s builds\n",
                 state->train.waits_for);
    } else if (state->train.build.active) {
        snprintf(line, sizeof(line), "STATUS=building the index, %lld records to go\n",
                 (long long)state->train.build.left);
    } else {
        if (consumer) {
            const stream_place now_at = consumer_place(consumer);
            snprintf(place, sizeof(place), "epoch %lld %.0f%%", (long long)now_at.epoch,
                     100 * now_at.share);
        }
        snprintf(line, sizeof(line),
                 "STATUS=%s, %llu rows, %.1f samples/s, %d workers, %lld quarantined\n", place,
                 (unsigned long long)counts->rows, counts->samples_per_s, state->n_seats,
                 (long long)(state->train.bad.n + state->eval.bad.n));
    }
    notify_try(line);
}

/* Shows on a terminal how far the epoch is and how long it still takes. */
static void show_epoch(const dispatch *state)
{
    const consumer_seat *consumer = leading(state);
    if (state->train.build.active || state->eval.build.active)
        return; /* the bar is that of the index */
    if (!consumer) {
        bar_clear();
        return;
    }
    const stream_place place = consumer_place(consumer);
    bar_draw(place.share, place.seconds_left, "epoch %lld, %.0f %%, %.1f samples/s%s",
             (long long)place.epoch, 100 * place.share, state->counts.samples_per_s,
             place.seconds_left < 0 ? ", waiting" : "");
}

/* Shows how far an index is, by the bar or now and then by a line. */
static void show_index(const dispatch *state, const source *section, int64_t now,
                       int64_t *inout_told_ns)
{
    const index_build *build = &section->build;
    if (!build->active)
        return;
    const int64_t total = index_samples(section->index) + index_images(section->index),
                  done = total - build->left;
    /* Of two indexes that are built at once, the bar shows the one for training. */
    if (section == &state->train || !state->train.build.active)
        bar_draw((double)done / (double)total, bar_seconds_left(build->started_ns, done, total),
                 "index of %s: %lld of %lld", section->name, (long long)done, (long long)total);
    if (*inout_told_ns < build->started_ns)
        *inout_told_ns = build->started_ns;
    if (bar_is_shown() || now - *inout_told_ns < TELL_EVERY_NS)
        return;
    *inout_told_ns = now;
    log_info("index building section=%s done=%lld of=%lld seconds=%.0f", section->name,
             (long long)done, (long long)total, (double)(now - build->started_ns) / 1e9);
}

void progress_watchdog(shell *around, int64_t now)
{
    const int64_t watchdog = notify_watchdog_ns();
    if (watchdog && now - around->watchdog_ns >= watchdog / 2 &&
        !metrics_unhealthy(around->core, now)) {
        notify_try("WATCHDOG=1\n");
        around->watchdog_ns = now;
    }
}

void progress_tell(shell *around, int64_t now)
{
    const dispatch *state = around->core;
    show_index(state, &state->train, now, &around->index_told_ns[0]);
    show_index(state, &state->eval, now, &around->index_told_ns[1]);
    if (state->counts.tick_ns == around->told_ns)
        return; /* the rates are those that were told before */
    around->told_ns = state->counts.tick_ns;
    doors_tell(around);
    tell_service_manager(state);
    show_epoch(state);
}
