/* beginning.h: how a sample's tokens begin, and how far they agree with another's
 * (data.group shared_prefix). */
#ifndef TESSERA_PREPD_SAMPLE_BEGINNING_H
#define TESSERA_PREPD_SAMPLE_BEGINNING_H

#include "prepd/sample/text.h"

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
