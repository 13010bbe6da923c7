/* memory_savings.h: options that save memory, for the search of what would fit.
 *
 *   savings_begin      with nothing added yet
 *   savings_adapters   adapters instead of all that is trained
 *   savings_add        adds the next option, and makes a trial of all that have been added
 *   savings_end        frees them
 *
 * In order: no copies for a crash on a CPU, whose memory they take; moments in 8 bits; masters in
 * BF16; a frozen base in 8 or 4 bits; updates in backward; moments on the host, beside adapters the
 * base too; lower ranks of adapters. What is set already is left out, and so is what saves nothing
 * or cannot be set beside the other options. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_SAVINGS_H
#define TESSERA_TRAINER_PLAN_MEMORY_SAVINGS_H

#include "trainer/plan/plan_trial.h"

enum { SAVINGS_TEXT = 384 };
typedef struct savings {
    const plan_input *in; /* borrowed */
    conf options;         /* owned: those of the input, and what has been added */
    char
        text[SAVINGS_TEXT]; /* what has been added: "optimizer.states int8, training.master bf16" */
    int step;
    int64_t bytes; /* what a row then takes, all of it recomputed; 0: not known yet */
} savings;

WARN_UNUSED status savings_begin(const plan_input *in, savings *out);
/* False if the input has adapters already. */
bool savings_adapters(savings *all, int64_t rank);
/* *inout: the trial before, or all 0; the caller ends the last one (plan_trial_end). *out_added is
 * false if there is nothing left to add; *inout then is of all that have been. */
WARN_UNUSED status savings_add(savings *all, plan_trial *inout, bool *out_added);
void savings_end(savings *all);

#endif
