/* share.h: the rows of a recording that one data-parallel consumer is owed. For client.c, and for
 * prepd where it serves one. */
#ifndef TESSERA_PROTO_SHARE_H
#define TESSERA_PROTO_SHARE_H

#include "proto/client.h"
#include "proto/record.h"

typedef struct share share;

/* Borrows record, codec and o's path, which must outlive it. end: rows of all loops together. Steps
 * begin at o's skip. CONFIG: more ranks than rows of a step. */
WARN_UNUSED status share_new(const replay_options *o, const record_reader *record, codec *c,
                             uint64_t end, share **out);
void share_free(share **s);
/* Enters at *inout_row, which is a cursor's: the row behind one that some rank had. Where that was
 * its rank's last of a step, all ranks are behind that step, whoever asks: a step's cursors mean
 * the same once it is whole. As many ranks as those whose cursor it is. */
WARN_UNUSED status share_enter(share *s, uint64_t *inout_row);
/* The first row from *inout_row on that is ours, or the end. Rows count over all loops. */
WARN_UNUSED status share_find(share *s, uint64_t *inout_row);

#endif
