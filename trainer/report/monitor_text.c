/* monitor_text.c: the figures of a run in Prometheus's text format, in base units. To add one,
 * write it here, explain it in trainer/running.md, and show it in deploy/grafana-trainer.json if
 * people should see it. */
#include "trainer/report/monitor_text.h"

#include <inttypes.h>
#include <math.h>

#include "common/http/exposition.h"

static const char *const phase_name[RUN_PHASES] = {"starting", "training", "evaluating", "saving",
                                                   "ending"};

static double seconds_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) / 1e9;
}

/* When the run last showed that it goes on. */
static int64_t alive_ns(const run_figures *figures)
{
    return figures->step_ns > figures->phase_ns ? figures->step_ns : figures->phase_ns;
}

static void gauge(FILE *out, const char *name, const char *help, double value)
{
    exposition_one(out, name, "gauge", help, value);
}

static void counter(FILE *out, const char *name, const char *help, int64_t value)
{
    exposition_one(out, name, "counter", help, (double)value);
}

static void print_run(FILE *out, const conf *options, const run_figures *figures)
{
    const exposition_label labels[] = {{"description", options->job_description},
                                       {"folder", options->job_dump_folder},
                                       {"model", options->model_path},
                                       {"recording", options->feed_replay},
                                       {"stream", figures->stream}};
    exposition_family(out, "trainer_build_info", "gauge", "1, with the version");
    exposition_labelled(out, "trainer_build_info", "version", TESSERA_VERSION, 1);
    exposition_family(out, "trainer_run_info", "gauge", "1, with what is trained on what");
    exposition_sample(out, "trainer_run_info", labels, sizeof labels / sizeof *labels, 1);
    exposition_family(out, "trainer_phase", "gauge", "1 for what the run is doing, 0 for the rest");
    for (int i = 0; i < RUN_PHASES; i++)
        exposition_labelled(out, "trainer_phase", "phase", phase_name[i], i == (int)figures->phase);
    gauge(out, "trainer_ranks", "processes of the run", (double)figures->ranks);
}

static void print_steps(FILE *out, const run_figures *figures, int64_t now_ns)
{
    if (figures->steps_planned > 0)
        gauge(out, "trainer_steps_planned", "steps of the whole run",
              (double)figures->steps_planned);
    gauge(out, "trainer_step_age_seconds",
          "since the last step finished; before the first, since what the run is doing began",
          seconds_between(figures->step ? figures->step_ns : figures->phase_ns, now_ns));
    counter(out, "trainer_steps_total", "steps finished by this process", figures->steps);
    counter(out, "trainer_skipped_steps_total", "steps whose update was skipped", figures->skipped);
    counter(out, "trainer_tokens_total", "tokens of these steps, all ranks", figures->tokens);
    counter(out, "trainer_targets_total", "target tokens of these steps", figures->targets);
    counter(out, "trainer_samples_total", "documents of these steps", figures->samples);
    counter(out, "trainer_images_total", "pictures of these steps", figures->images);
    exposition_one(out, "trainer_wait_seconds_total", "counter",
                   "time in which the device stood idle without rows, of the rank that waited "
                   "longest",
                   (double)figures->wait_ns * 1e-9);
    if (figures->step == 0)
        return;
    gauge(out, "trainer_step", "the last finished step", (double)figures->step);
    gauge(out, "trainer_loss", "training loss of the last step", figures->loss);
    gauge(out, "trainer_grad_norm", "norm of its gradient before clipping", figures->grad_norm);
    gauge(out, "trainer_learning_rate", "learning rate of the last step", figures->lr);
}

static void print_line_rates(FILE *out, const run_figures *figures)
{
    const line_rates *rates = &figures->rates;
    if (figures->planned_bytes > 0)
        gauge(out, "trainer_memory_planned_bytes", "memory that the first rank is to take",
              (double)figures->planned_bytes);
    if (!figures->has_line)
        return;
    gauge(out, "trainer_device_tokens_per_second",
          "tokens a second of one device, over the steps of the last log line", rates->tokens);
    if (isfinite(rates->mfu))
        gauge(out, "trainer_mfu_ratio", "share of the device's peak in the same steps, 0 to 1",
              rates->mfu);
    gauge(out, "trainer_memory_used_bytes", "memory that the first rank's device has given out",
          (double)rates->memory_used);
    gauge(out, "trainer_memory_device_bytes", "memory that the device has",
          (double)rates->memory_total);
}

static void print_checkpoints(FILE *out, const run_figures *figures, int64_t now_ns)
{
    exposition_family(out, "trainer_checkpoints_total", "counter", "saves of this process");
    exposition_labelled(out, "trainer_checkpoints_total", "outcome", "written",
                        (double)figures->saved);
    exposition_labelled(out, "trainer_checkpoints_total", "outcome", "failed",
                        (double)figures->unsaved);
    if (figures->saved == 0)
        return;
    gauge(out, "trainer_checkpoint_step", "step of the last checkpoint that was written",
          (double)figures->saved_step);
    gauge(out, "trainer_checkpoint_seconds", "how long writing it took", figures->saved_seconds);
    gauge(out, "trainer_checkpoint_age_seconds", "since it was written",
          seconds_between(figures->saved_ns, now_ns));
}

void monitor_print(FILE *out, const conf *options, const run_figures *figures, int64_t now_ns)
{
    print_run(out, options, figures);
    print_steps(out, figures, now_ns);
    print_line_rates(out, figures);
    if (figures->is_evaluated) {
        gauge(out, "trainer_held_out_loss", "loss of the last evaluation", figures->held_out_loss);
        gauge(out, "trainer_held_out_accuracy_ratio", "accuracy of the last evaluation, 0 to 1",
              figures->held_out_accuracy);
    }
    print_checkpoints(out, figures, now_ns);
    if (figures->step > 0)
        gauge(out, "trainer_bad_samples", "samples that the stream leaves out because they are bad",
              (double)figures->bad_samples);
    exposition_process(out);
}

bool monitor_is_stuck(const conf *options, const run_figures *figures, int64_t now_ns, char *out,
                      size_t size)
{
    const double quiet = seconds_between(alive_ns(figures), now_ns);
    if (quiet <= options->metrics_step_timeout)
        return false;
    snprintf(out, size,
             "for %.0f s no step has finished (metrics.step_timeout %.0f s); the run is %s, and "
             "its last step was %" PRId64,
             quiet, options->metrics_step_timeout, phase_name[figures->phase], figures->step);
    return true;
}
