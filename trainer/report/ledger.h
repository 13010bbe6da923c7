/* SPDX-License-Identifier: Apache-2.0 */
/* ledger.h: job.dump_folder/ledger.jsonl, which records what each step consumed and what came of
 * it, so that a run can be compared with another run or with its own replay (trainer verify). Each
 * step is a JSON object on its own line, appended and handed to the system at once:
 *
 *   {"step":N,"documents":D,"samples":DIGEST,"rows":DIGEST,"loss":X,"grad_norm":X,"skipped":B}
 *
 * "samples" is XXH3-128 of the sample ids in stream order, 8 bytes little-endian each. "ids" lists
 * them if the step was skipped, if its loss leaps (spike.h), in which case the line also has
 * "leaps":true, or if metrics.ledger_ids asks for it. Real numbers read back exactly; one that is
 * not finite is written as null. A skipped step that is partial (step_report.updated) also has
 * "partial", the units that it updated. Where optimizer.states, training.master or
 * optimizer.in_backward are not as by default, each line has "states", which names them, so that a
 * ledger shows from which step on a resumed run kept its states in another way. The first line
 * that a process writes also has "choices", the ways that its device does a step in
 * (device/choices.h), if it has several.
 *
 * A step has one line. When a run resumes from a checkpoint and will do steps again, it first moves
 * their lines to set-aside-ledger.jsonl (rewind.h). The reader also accepts a file in which this
 * move did not happen, because the disk refused it: a line whose step is not above that of the line
 * before begins a new branch, and replaces the earlier lines of that step and later ones. A line
 * that was cut short when the process died is ignored. */
#ifndef TESSERA_TRAINER_REPORT_LEDGER_H
#define TESSERA_TRAINER_REPORT_LEDGER_H

#include "trainer/run/step.h"

typedef struct ledger ledger;

/* Opens the ledger of job.dump_folder, or begins it. `options` is read during the call alone. */
WARN_UNUSED status ledger_open(const conf *options, ledger **out);
void ledger_close(ledger **ledger);
/* Appends the line of a step. leaps: its loss leaps. choices: session.choices if it is the first
 * line of this process, else "". ST_IO means that this line is lost; the next
 * one may be written. */
WARN_UNUSED status ledger_add(ledger *ledger, const step_report *report, bool leaps,
                              const char *choices);
/* Syncs the file to disk, before a checkpoint that relies on it. */
WARN_UNUSED status ledger_sync(ledger *ledger);

typedef struct ledger_entry {
    int64_t step, documents;
    hash128 samples, rows;
    double loss, grad_norm; /* NAN where not finite */
    bool skipped;
    char updated[UNIT_RANGE]; /* of a partial step: the units that were updated; else "" */
} ledger_entry;

/* Reads the entries of the last branch, in rising order of steps. *out is on the heap. ST_NO_INPUT
 * if there is no ledger. */
WARN_UNUSED status ledger_read(const char *folder, ledger_entry **out, int64_t *out_n);
/* Writes what differs between two entries of the same step in words; "" if nothing does. */
void ledger_difference(const ledger_entry *was, const ledger_entry *now, char *out, size_t size);
ledger_entry ledger_entry_of(const step_report *report);

#endif
