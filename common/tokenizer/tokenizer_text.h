/* tokenizer_text.h: UTF-8 made valid and NFC, each with the way back to the bytes it came from.
 *
 * The only door to utf8proc. Offsets survive because canonical decomposition, reordering and
 * composition are done here on code points that carry their source (utf8proc gives the tables). */
#ifndef TESSERA_COMMON_TOKENIZER_TEXT_H
#define TESSERA_COMMON_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* A text derived from another one. */
typedef struct mapped_text {
    uint8_t *bytes;  /* [size] */
    int64_t *source; /* [size] offset in the other text of the character this byte belongs to */
    size_t size, capacity;
} mapped_text; /* heap, reused; mapped_text_done frees */

/* A code point on its way through NFC. */
typedef struct nfc_point {
    int32_t code;
    int32_t combining; /* canonical combining class */
    int64_t source;    /* offset of the source character */
    int64_t order;     /* place before sorting, so that the sort is stable */
} nfc_point;

typedef struct nfc_scratch {
    nfc_point *points;
    size_t n, capacity;
} nfc_scratch;

void mapped_text_done(mapped_text *m);
void nfc_scratch_done(nfc_scratch *s);

/* One character at p (left > 0 bytes): its length, code point in *out_code. Bad bytes: -1, and the
 * length of the maximal ill-formed part (Unicode 15, section 3.9, the practice of W3C and Python).
 */
size_t utf8_next(const uint8_t *p, size_t left, int32_t *out_code);
/* At most 4 bytes of a code point up to U+10FFFF; the number written. */
size_t utf8_put(int32_t code, uint8_t out[4]);
/* Each bad part becomes U+FFFD. */
WARN_UNUSED status utf8_repair(const uint8_t *text, size_t size, mapped_text *out);

/* True if NFC certainly leaves this valid text as it is; quick, and false where it is not sure. */
bool nfc_settled(const uint8_t *text, size_t size);
/* NFC of valid text. */
WARN_UNUSED status nfc_normalise(const uint8_t *text, size_t size, nfc_scratch *s,
                                 mapped_text *out);

#endif
