/* session_stream.h: the streams of rows of a session, and the shapes that their micro-batches have.
 * Internal to session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_STREAM_H
#define TESSERA_TRAINER_RUN_SESSION_STREAM_H

#include "trainer/run/session.h"

/* Opens session->train and keeps what checkpoints record of it (session->stream_options,
 * session->recording). ST_CONFIG if a run that goes on would get another stream than before,
 * ST_BAD_INPUT if its cursor does not point at the row after those that were trained. */
WARN_UNUSED status session_train_stream(session *session);
/* Reads from WELCOME how long rows are and how many there are, and finds the largest capacities
 * that a micro-batch may need, of the train stream and of held-out rows: sets seq_len, stream_rows,
 * buckets and cap. ST_PROTOCOL if no row can have these. */
WARN_UNUSED status session_shapes(session *session);

#endif
