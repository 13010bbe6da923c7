/* ledger.h: job.dump_folder/ledger.jsonl: what every step consumed and gave, one JSON object per
 * line, appended and handed to the system at once, so that a run can be compared with another, or
 * with its own replay (trainer verify):
 *
 *   {"step":N,"documents":D,"samples":DIGEST,"rows":DIGEST,"loss":X,"grad_norm":X,"skipped":B}
 *
 * samples: XXH3-128 of the sample ids in stream order, 8 bytes little-endian each; "ids" lists them
 * where the step was skipped or metrics.ledger_ids asks for it. Reals read back exactly; one that
 * is not finite is null. One line per step: before a run that goes on does steps again, their lines
 * move to set-aside-ledger.jsonl (rewind.h). A reader also takes what an earlier version, or a disk
 * that refused that move, has left: where a line's step is at or below the one before, lines of
 * that step and later ones that stand before are of a branch that was left; a line cut short by a
 * death is no line. */
#ifndef TESSERA_TRAINER_REPORT_LEDGER_H
#define TESSERA_TRAINER_REPORT_LEDGER_H

#include "trainer/run/step.h"

typedef struct ledger ledger;

WARN_UNUSED status ledger_open(const char *folder, bool with_ids, ledger **out);
void ledger_close(ledger **l);
/* ST_IO: this step has no line, the next one may. */
WARN_UNUSED status ledger_add(ledger *l, const step_report *r);
WARN_UNUSED status ledger_sync(ledger *l); /* before a checkpoint that relies on it */

typedef struct ledger_entry {
    int64_t step, documents;
    hash128 samples, rows;
    double loss, grad_norm; /* NAN where not finite */
    bool skipped;
} ledger_entry;

/* The entries of the branch that was followed to the end, rising by step; heap. NO_INPUT where
 * there is no ledger. */
WARN_UNUSED status ledger_read(const char *folder, ledger_entry **out, int64_t *out_n);
/* In words what differs between an entry and a step of the same number; "" if nothing does. */
void ledger_difference(const ledger_entry *was, const ledger_entry *now, char *out, size_t size);
ledger_entry ledger_entry_of(const step_report *r);

#endif
