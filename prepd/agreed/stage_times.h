/* SPDX-License-Identifier: Apache-2.0 */
/* stage_times.h: the stages of making a row, in which a worker reports its time and the dispatcher
 * shows it. */
#ifndef TESSERA_PREPD_AGREED_STAGE_TIMES_H
#define TESSERA_PREPD_AGREED_STAGE_TIMES_H

enum { STAGE_READ, STAGE_DECODE, STAGE_RESIZE, STAGE_TEXT, STAGE_PACK, N_STAGES };

/* read: reading files and the cache; decode: file to RGB; resize: resampling and cutting patches;
 * text: chat template and tokenizer; pack: the row's message, with filter and compression. */
static const char *const stage_names[N_STAGES] = {"read", "decode", "resize", "text", "pack"};

#endif
