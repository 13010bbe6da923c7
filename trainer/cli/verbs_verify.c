/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_verify.c: trainer verify: runs steps of a run again and compares them with its ledger. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/program/verb.h"
#include "common/base/words.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/report/ledger.h"
#include "trainer/run/step.h"
#include "trainer/train/train.h"
#include "trainer/cli/verbs.h"

typedef struct stretch {
    int64_t from, to; /* -1: not given */
} stretch;

static status read_args(int argc, char **argv, stretch *out)
{
    *out = (stretch){-1, -1};
    const char *from, *to;
    TRY(verb_take(&argc, argv, "--from", &from));
    TRY(verb_take(&argc, argv, "--to", &to));
    if (from)
        TRY(verb_number("--from", from, 0, INT64_MAX, &out->from));
    if (to)
        TRY(verb_number("--to", to, 0, INT64_MAX, &out->to));
    return verb_all_taken(argc, argv);
}

static const ledger_entry *find_step(const ledger_entry *list, int64_t count, int64_t step)
{
    for (int64_t i = 0; i < count; i++)
        if (list[i].step == step)
            return &list[i];
    return NULL;
}

/* Finds the checkpoint to begin at: that of step `from`, or the oldest one if from is below 0.
 * There is none for step 0. */
static status find_start(const conf *options, int64_t from, resume_point *out, bool *out_found)
{
    char folder[STATUS_PATH_MAX];
    int64_t *step = NULL, count = 0;
    TRY(train_checkpoint_folder(options, folder));
    if (from < 0) {
        TRY(folder_steps(folder, &step, &count));
        from = count ? step[0] : 0;
        free(step);
    }
    return checkpoint_writer_find(folder, from, NULL, NULL, out->path, &out->progress, out_found);
}

/* The options that differ from those of the run, as "; KEY: VALUE here, VALUE in the run, .." */
typedef struct changes {
    char text[1024];
    size_t count;
    int64_t earlier_steps; /* of the run: done with earlier generations of the data */
} changes;

static void add_change(void *user, const char *key, const char *was, const char *now)
{
    static const char *const harmless[] = {"metrics.", "eval.", "log.", "prepd.", "comm."};
    changes *differences = user;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strncmp(key, harmless[i], strlen(harmless[i])) == 0)
            return;
    if (*was) /* an option that did not exist when the run was made cannot be compared */
        differences->count = words_add(differences->text, sizeof differences->text,
                                       differences->count, "%s%s: %s here, %s in the run",
                                       differences->count ? ", " : "; ", key, now, was);
}

/* Compares the options with those kept in the newest checkpoint that can be read. A run without
 * checkpoints keeps none, and then no difference is named. */
static status find_changes(const conf *options, changes *out)
{
    char folder[STATUS_PATH_MAX], path[STATUS_PATH_MAX], training[STATUS_PATH_MAX], *now = NULL;
    int64_t *step = NULL, count = 0;
    status st;
    *out = (changes){0};
    TRY(train_checkpoint_folder(options, folder));
    TRY(folder_steps(folder, &step, &count));
    TRY_OR(done, config_text(options, &now));
    for (bool found = false; count > 0 && !found; count--) {
        progress state = {0};
        TRY_OR(done, folder_step_path(path, folder, step[count - 1], NULL));
        TRY_OR(done, hf_path(training, path, FOLDER_TRAINING));
        found = progress_read(training, &state) == ST_OK;
        if (found) {
            config_changes(state.config, now, add_change, out);
            out->earlier_steps = state.earlier_steps;
        }
        progress_done(&state);
    }
done:
    free(step);
    free(now);
    return st;
}

static status replay(session *run, const ledger_entry *list, int64_t count, int64_t from,
                     int64_t to, const changes *other)
{
    int64_t compared = 0;
    for (int64_t step = from + 1; step <= to; step++) {
        const ledger_entry *was = find_step(list, count, step);
        step_report report;
        char words[256];
        status st = step_run(run, step, &report);
        if (st == ST_END && !was)
            break;
        if (st == ST_END)
            return FAIL(ST_BAD_INPUT, "the stream ends before step %" PRId64, step);
        TRY(st);
        if (!was)
            return FAIL(ST_BAD_INPUT, "the ledger has no step %" PRId64, step);
        ledger_entry now = ledger_entry_of(&report);
        ledger_difference(was, &now, words, sizeof words);
        if (words[0]) {
            printf("verify: step %" PRId64 " is the first that differs: %s%s\n", step, words,
                   other->text);
            return FAIL(ST_BAD_INPUT, "step %" PRId64 " differs from the ledger: %s%s", step, words,
                        other->text);
        }
        compared++;
    }
    printf("verify: %" PRId64 " steps, %" PRId64 " to %" PRId64
           ", agree with the ledger to the bit\n",
           compared, from + 1, from + compared);
    return ST_OK;
}

/* Refuses to replay steps of an earlier generation of the data with the rows of this one. */
static status check_generation(const session *run, const resume_point *start, bool found,
                               int64_t earlier_steps)
{
    const bool before = run->new_generation || (!found && run->conf->data_generation > 0);
    if (!before || start->progress.step == earlier_steps)
        return ST_OK;
    return FAIL(ST_CONFIG,
                "data.generation was raised after step %" PRId64
                ", and the replay would begin after step %" PRId64 ": give --from %" PRId64
                " or a later checkpoint, or the data and the generation of the steps before",
                earlier_steps, start->progress.step, earlier_steps);
}

status verb_verify(int argc, char **argv)
{
    conf options;
    stretch want;
    session run = {0};
    resume_point start = {0};
    changes other;
    ledger_entry *list = NULL;
    int64_t count = 0;
    bool found = false;
    if (argc < 2)
        return FAIL(ST_USAGE, "verify needs the options of the run: -c FILE, or at least "
                              "--job.dump_folder DIR");
    TRY(verb_load(&options, &argc, argv, NULL));
    log_init("trainer", options.log_level, options.log_json);
    options.eval_enable = false;
    status st = read_args(argc, argv, &want);
    if (st != ST_OK)
        goto done;
    st = ledger_read(options.job_dump_folder, &list, &count);
    if (st == ST_NO_INPUT)
        st = FAIL(ST_NO_INPUT, "%s; job.dump_folder must be the folder of a run that made a step",
                  status_text());
    TRY_OR(done, st);
    TRY_OR(done, find_start(&options, want.from, &start, &found));
    int64_t last = count ? list[count - 1].step : 0;
    if (want.to < 0 || want.to > last)
        want.to = last;
    if (want.to <= start.progress.step) {
        st = FAIL(ST_BAD_INPUT,
                  "the ledger of %s ends at step %" PRId64 ", but the replay would begin after "
                  "step %" PRId64 "; give an earlier step with --from",
                  options.job_dump_folder, last, start.progress.step);
        goto done;
    }
    TRY_OR(done, find_changes(&options, &other));
    TRY_OR(done, session_connect(&options, NULL, SESSION_TRAIN, &run));
    TRY_OR(done, session_load(found ? &start : NULL, &run));
    TRY_OR(done, check_generation(&run, &start, found, other.earlier_steps));
    st = replay(&run, list, count, start.progress.step, want.to, &other);
done:
    session_close(&run);
    progress_done(&start.progress);
    free(list);
    conf_done(&options);
    return st;
}
