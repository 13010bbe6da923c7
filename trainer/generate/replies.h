/* replies.h: finds what the model is to say in a packed row. A reply is a run of targets in a
 * document: an answer to a question, one turn of a conversation, or all of a plain text. */
#ifndef TESSERA_TRAINER_GENERATE_REPLIES_H
#define TESSERA_TRAINER_GENERATE_REPLIES_H

#include "proto/batch.h"

typedef struct reply {
    int64_t doc;
    int64_t begin, end; /* its tokens in the row: the first target, and after the last */
} reply;

/* Writes the replies of a row in the order of their tokens, unless out is NULL, and returns how
 * many there are: at most the row's targets. device_batch.host_target_reply counts them in the same
 * way.
 */
int64_t replies_of_row(const row *packed, reply *out);

#endif
