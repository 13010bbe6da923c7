/* rank_link_notes.h: what ranks tell rank 0 beside their reports: on its way to the rank link's
 * thread, and kept on rank 0. Internal to the rank link. */
#ifndef TESSERA_TRAINER_PARALLEL_RANK_LINK_NOTES_H
#define TESSERA_TRAINER_PARALLEL_RANK_LINK_NOTES_H

#include <pthread.h>
#include <stdbool.h>

#include "trainer/parallel/rank_link.h"

typedef struct rank_link_notes {
    pthread_mutex_t lock;
    char *own;   /* of this rank, not sent yet; NULL: none */
    char **kept; /* [ranks] the last one of each; NULL: none */
    int ranks;
} rank_link_notes;

WARN_UNUSED status rank_link_notes_init(rank_link_notes *out, int ranks);
void rank_link_notes_done(rank_link_notes *notes);
/* This rank's note, in place of one that was not sent yet. */
void rank_link_notes_put(rank_link_notes *notes, const char *note);
/* Takes it: heap memory of the caller; NULL: there is none. */
char *rank_link_notes_take(rank_link_notes *notes);
/* Keeps a note of a rank, in place of an earlier one. */
void rank_link_notes_keep(rank_link_notes *notes, int rank, const char *note);
bool rank_link_notes_find(rank_link_notes *notes, int rank, char out[RANK_LINK_NOTE_MAX]);

#endif
