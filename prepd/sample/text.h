/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: renders the turns of a sample in Qwen3-VL's chat template and makes ids and labels of
 * them.
 *
 * The whole conversation is rendered as one string and tokenised at once. In it a picture is
 * <|vision_start|><|image_pad|><|vision_end|>, and each pair of a clip's frames is "<0.3 seconds>"
 * and the same with <|video_pad|>; with video.prompt 5.23 a clip as a whole stands between one more
 * <|vision_start|> and <|vision_end|>. After that each pad is repeated as often as the picture has
 * tokens. Control tokens cut the text, so this gives the ids of a string with that many pads.
 *
 * Labels come from byte spans that are recorded while rendering: the assistant's texts and the
 * <|im_end|> after each. They are never counted in tokens, because a token may straddle two spans.
 */
#ifndef TESSERA_PREPD_SAMPLE_TEXT_H
#define TESSERA_PREPD_SAMPLE_TEXT_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/dataset/dataset.h"

typedef struct chat_ids {
    int32_t im_start, im_end, vision_start, vision_end, image_pad, video_pad;
    int32_t text_end; /* <|endoftext|>, which ends a plain text; -1 if there is none */
} chat_ids;

/* Finds these tokens in the tokenizer by their content. ST_BAD_INPUT names a missing one. That
 * config.json gives the same ids (image_token_id and so on) is checked where the model folder is
 * opened. */
WARN_UNUSED status chat_ids_find(const tokenizer *from, chat_ids *out);

/* What one image of a sample is in the text. */
typedef struct chat_visual {
    int64_t tokens;        /* pads of the picture, or of each pair of frames; 0 while measuring */
    const double *seconds; /* [n_pairs] when each pair of frames is; borrowed */
    int32_t n_pairs;       /* 0: a still picture */
} chat_visual;

/* The arrays live in the arena. */
typedef struct chat_text {
    int32_t *ids;    /* [count] */
    int32_t *labels; /* [count] the id, or NO_LABEL; the first one is always NO_LABEL */
    int64_t count;
    int64_t n_targets; /* how many labels are not NO_LABEL */
    int64_t *run_at;   /* [n_runs] where the pads of each picture and each pair of frames begin */
    int64_t n_runs;
    float *
        weights; /* [count] weights of the labels in the loss, 1 where there is none; NULL: all 1 */
} chat_text;

/* Renders and tokenises a sample. `visuals` [n_images] are those of its images.
 *
 * A system turn counts only if it is the first; if there is none, data.system stands in. Only user
 * turns show images, and every image of the sample must be shown once, in order. A plain sample is
 * the ids of its text and <|endoftext|>, all of which are labels except for the first.
 *
 * ST_BAD_INPUT, with the sample's name, for a text that holds one of the visual control tokens
 * literally, for a sample without a label, and for images that are out of order or not shown. */
WARN_UNUSED status chat_encode(const tokenizer *with, tokenizer_scratch *scratch,
                               const chat_ids *ids, const conf *options, const sample *from,
                               const chat_visual *visuals, arena *memory, chat_text *out);

/* How a sample's tokens begin, and how far they agree with another's
 * (data.group shared_prefix). */

/* Places and counts of tokens, without the pads of pictures and clips. */
typedef struct text_beginning {
    int64_t agrees;      /* tokens in common with the other text, from the first on */
    int64_t head;        /* tokens before the last picture or pair of frames; 0 without any */
    int64_t first_label; /* which token is the first with a label */
} text_beginning;

/* Compares a text with another one, or with NULL, in which case `agrees` is 0. Both were encoded
 * with visuals of 0 tokens, and both samples show the same images. */
text_beginning text_compare_beginning(const chat_text *text, const chat_text *other);

#endif
