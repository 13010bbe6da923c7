/* stage_times.h: where a worker's time goes, as it reports and the dispatcher shows it. */
#ifndef TESSERA_PREPD_AGREED_STAGE_TIMES_H
#define TESSERA_PREPD_AGREED_STAGE_TIMES_H

enum { STAGE_READ, STAGE_DECODE, STAGE_RESIZE, STAGE_TEXT, STAGE_PACK, N_STAGES };

/* read: files; decode: file to RGB; resize: resampler and patches; text: chat template and
 * tokenizer; pack: the row, filter and codec. */
static const char *const stage_names[N_STAGES] = {"read", "decode", "resize", "text", "pack"};

#endif
