/* snapshot_run.h: the members of a run's snapshot. Internal to snapshot.c, which keeps copies, and
 * snapshot_find.c, which finds those of an earlier process. */
#ifndef TESSERA_TRAINER_CHECKPOINT_SNAPSHOT_RUN_H
#define TESSERA_TRAINER_CHECKPOINT_SNAPSHOT_RUN_H

#include <pthread.h>

#include "trainer/checkpoint/snapshot.h"
#include "trainer/checkpoint/snapshot_file.h"
#include "trainer/parallel/comm.h"

/* In the folder of checkpoints: the id of the run, which a copy in memory must have too. */
#define SNAPSHOT_RUN_FILE ".run"

struct snapshot {
    const conf *conf;
    const char *folder; /* of checkpoints */
    params *registry;
    stream *queue;
    rank_link *watch;
    int local_ranks; /* of the job, on this machine */
    comm alone;
    const comm *all; /* all ranks */
    char path[STATUS_PATH_MAX];
    char *layout; /* the text of shape; heap */
    snapshot_shape shape;
    snapshot_file *file; /* NULL: none */
    bool lives, pinned;
    int newest; /* the side that was written last */
    int kept;   /* the side that a checkpoint is written from */
    bool found; /* snapshot_find has found `newest` */

    pthread_t thread; /* hashes `newest` */
    bool hashes;      /* it runs */
    int64_t step;     /* of that copy */
    char *text;       /* its state; heap */
    status outcome;   /* of the last copy; the first failure stays */
    status_note note; /* its cause */
};

/* Reads the id of the run that checkpoints in this folder belong to, the same on all ranks; all
 * zeros if it has none. */
WARN_UNUSED status snapshot_run_id(snapshot *shot);

#endif
