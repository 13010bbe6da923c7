/* rank_link_notes.c: see rank_link_notes.h. */
#include "trainer/parallel/rank_link_notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"

status rank_link_notes_init(rank_link_notes *out, int ranks)
{
    *out = (rank_link_notes){.ranks = ranks};
    pthread_mutex_init(&out->lock, NULL);
    out->kept = (char **)calloc((size_t)ranks, sizeof *out->kept);
    return out->kept ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for the rank link");
}

void rank_link_notes_done(rank_link_notes *notes)
{
    for (int i = 0; notes->kept && i < notes->ranks; i++)
        free(notes->kept[i]);
    free(notes->kept);
    free(notes->own);
    pthread_mutex_destroy(&notes->lock);
}

/* Without memory for it the note is lost, and whoever waits for it waits as long as without it. */
static void replace_note(rank_link_notes *notes, char **inout, const char *note)
{
    char *copy = strdup(note);
    if (!copy)
        log_warn("no memory for what a rank says: %s", note);
    pthread_mutex_lock(&notes->lock);
    free(*inout);
    *inout = copy;
    pthread_mutex_unlock(&notes->lock);
}

void rank_link_notes_put(rank_link_notes *notes, const char *note)
{
    replace_note(notes, &notes->own, note);
}

void rank_link_notes_keep(rank_link_notes *notes, int rank, const char *note)
{
    replace_note(notes, &notes->kept[rank], note);
}

char *rank_link_notes_take(rank_link_notes *notes)
{
    pthread_mutex_lock(&notes->lock);
    char *taken = notes->own;
    notes->own = NULL;
    pthread_mutex_unlock(&notes->lock);
    return taken;
}

bool rank_link_notes_find(rank_link_notes *notes, int rank, char out[RANK_LINK_NOTE_MAX])
{
    pthread_mutex_lock(&notes->lock);
    const bool found = notes->kept[rank] != NULL;
    if (found)
        snprintf(out, RANK_LINK_NOTE_MAX, "%s", notes->kept[rank]);
    pthread_mutex_unlock(&notes->lock);
    return found;
}
