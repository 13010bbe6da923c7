/* text.h: a sample's turns -> Qwen3-VL chat template -> ids and labels (spec section 9).
 *
 * The whole string is rendered with every image as <|vision_start|><|image_pad|><|vision_end|>, and
 * a clip as "<0.3 seconds>" and the same with <|video_pad|> for each pair of frames (video.prompt
 * 5.23: all of a clip between one more <|vision_start|> and <|vision_end|>), and tokenised at once;
 * then each pad is repeated (control tokens cut the text, so that gives the ids of the string with
 * n pads). Labels come from byte spans recorded while rendering (assistant text and <|im_end|>),
 * never from token counts. */
#ifndef TESSERA_PREPD_SAMPLE_TEXT_H
#define TESSERA_PREPD_SAMPLE_TEXT_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/dataset/dataset.h"

typedef struct chat_ids {
    int32_t im_start, im_end, vision_start, vision_end, image_pad, video_pad;
    int32_t text_end; /* <|endoftext|>, which ends a plain text; -1: there is none */
} chat_ids;

/* By content from the tokenizer; a missing one fails by name. config.json's image_token_id etc.
 * must agree (checked where the model folder is opened). */
WARN_UNUSED status chat_ids_find(const tokenizer *t, chat_ids *out);

/* What a sample's k-th image is in the text. */
typedef struct chat_visual {
    int64_t tokens;        /* pads of the picture, or of each pair of frames; 0 while measuring */
    const double *seconds; /* [n_pairs] when each pair of frames is; borrowed */
    int32_t n_pairs;       /* 0: a still picture */
} chat_visual;

typedef struct chat_text {
    int32_t *ids;    /* [n] */
    int32_t *labels; /* [n] id or NO_LABEL; the first is NO_LABEL */
    int64_t n;
    int64_t n_targets; /* labels that count */
    int64_t *run_at;   /* [n_runs] index of each run's first pad: one per picture and per pair */
    int64_t n_runs;
    float *weights; /* [n] of the loss, 1 where there is no label; NULL: all 1 */
} chat_text;        /* arrays in the arena */

/* A plain sample is its text's ids and <|endoftext|>, all of them labels but the first.
 *
 * visuals [n_images] of the sample.
 *
 * A system turn counts if it is the first; data.system stands in where there is none. Pictures are
 * rendered in user turns only, and every image must appear once, in order.
 * ST_BAD_INPUT, with the sample's name: a text that holds a visual control token literally, a
 * sample with no trained token, images out of order or not shown. */
WARN_UNUSED status chat_encode(const tokenizer *t, tokenizer_scratch *s, const chat_ids *ids,
                               const conf *c, const sample *smp, const chat_visual *visuals,
                               arena *a, chat_text *out);

#endif
