/* chance.h: the chance level: how often two documents whose texts are the same up to a reply, but
 * which show different pictures, have the same reference reply.
 *
 * A model that looked only at the picture would have this accuracy with swapped pictures. It can be
 * estimated only if the same questions occur many times, as in generated data; a question that
 * occurs once says nothing about it. */
#ifndef TESSERA_TRAINER_EVAL_CHANCE_H
#define TESSERA_TRAINER_EVAL_CHANCE_H

#include "trainer/generate/replies.h"

typedef struct chance_entry {
    uint64_t question, answer; /* hashes of their tokens */
} chance_entry;

typedef struct chance {
    chance_entry *list; /* [count] heap; 16 bytes a reply */
    int64_t count, capacity;
} chance;

/* Adds those replies of a row whose documents show pictures. A chance that is all 0 is empty. */
WARN_UNUSED status chance_add(chance *all, const row *packed, const reply *replies, int64_t count);
/* The chance level in percent, or NAN where there are none, or where fewer than nine in ten have a
 * question that occurs again. Reorders the list. */
double chance_percent(chance *all);
void chance_done(chance *all);

#endif
