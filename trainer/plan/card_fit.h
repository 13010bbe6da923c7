/* card_fit.h: the search for the settings with which a model is trained on a card.
 *
 * Rows of 8,192 tokens come first. If they do not fit with anything that saves memory, rows are
 * shortened, to 6,144, 4,096, 3,072 .. and 1,024 tokens. If no length fits on one card, the same is
 * tried on 2, 4, .. cards, which share all parameters (FSDP) and, in any number of groups, the
 * experts. Of one length on so many cards, the first saving that lets a row in is taken, and with
 * it what is predicted to be the fastest: the micro-batch, the mode of activation checkpointing and
 * the groups of experts. */
#ifndef TESSERA_TRAINER_PLAN_CARD_FIT_H
#define TESSERA_TRAINER_PLAN_CARD_FIT_H

#include "trainer/plan/cost.h"
#include "trainer/plan/layout_plan.h"

/* An option as conf_set takes it; a key of NULL ends a list. */
typedef struct card_setting {
    const char *key, *value;
} card_setting;
enum { CARD_SETTINGS = 4 };

/* Settings that save memory. */
typedef struct card_saving {
    const char *name; /* a few words; "" for none */
    card_setting set[CARD_SETTINGS];
} card_saving;

/* What is trained. */
typedef struct card_method {
    const char *name;
    card_setting experts[CARD_SETTINGS],
        dense[CARD_SETTINGS];   /* for a model with experts, without */
    const card_saving *savings; /* [n_savings] those that save most last */
    int n_savings;
} card_method;

/* What was found. Everything but `lacking` is of the settings that fit. */
typedef struct card_fit {
    int64_t cards;   /* how many are needed; 0: more than CARDS_MOST */
    int64_t experts; /* parallelism.expert_parallel_degree */
    int64_t lacking; /* bytes that one card lacks with all that saves; 0: it is enough */
    const card_saving *saving;
    int64_t rows, seq_len;    /* of a micro-batch */
    int mode;                 /* activation checkpointing, AC_NONE .. */
    int64_t total, host;      /* bytes of a card, and of its host for it alone */
    double tokens_per_s, mfu; /* of a card */
} card_fit;

enum { CARD_SEQ_LEN = 8192, CARD_SEQ_LEN_LEAST = 1024, CARDS_MOST = 16, CARD_STEP_ROWS = 32 };

/* base: memory.limit, the data and everything else that neither `method` nor the search decides.
 * Checkpoints are enabled, so that the host's memory is that of a run. A step has CARD_STEP_ROWS
 * rows, or one micro-batch where optimizer.in_backward asks for that. Needs no card.
 * card: a GPU with rates (plan_device.card). */
WARN_UNUSED status card_fit_find(const conf *base, const model_dims *dims,
                                 const card_method *method, const plan_device *card, card_fit *out);

#endif
