/* fingerprints.h: what makes pixels and ids on this machine, as hashes that can be compared.
 *
 * The same files become the same rows wherever the decoder of pictures, the decoder of videos and
 * the tokenizer are the same: the libraries of the machine, the model's files, and our own code.
 * A fingerprint is a hash of what one of them makes of a fixed input that is built in
 * (image_fingerprint, video_fingerprint, tokenizer_fingerprint). The build id stands for our code:
 * a hash of the sources that rows are made by (build_id.cmake). The daemon has its own made in a
 * separate process (serve/fingerprint_maker.c), workers say theirs in JOIN, and a stream carries
 * the daemon's in WELCOME and in every cursor. */
#ifndef TESSERA_PREPD_AGREED_FINGERPRINTS_H
#define TESSERA_PREPD_AGREED_FINGERPRINTS_H

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/base/status.h"

typedef enum print_kind { PRINT_IMAGES, PRINT_VIDEOS, PRINT_TOKENS, N_PRINTS } print_kind;

typedef struct fingerprints {
    char of[N_PRINTS][HASH_TEXT]; /* 32 hex digits; "": not known */
} fingerprints;

extern const char *const print_names[N_PRINTS]; /* "images", "videos", "tokens" */
extern const char prepd_build[HASH_TEXT];       /* of this program */

void fingerprints_set(fingerprints *f, print_kind kind, hash128 value);
/* "fingerprints": {"images": .., ..}, those that are known. */
void fingerprints_put(const fingerprints *f, json_writer *w);
/* The member "fingerprints" of an object; without it all are unknown. ST_PROTOCOL for a text
 * that is no hash. */
WARN_UNUSED status fingerprints_read(const json_value *object, const char *source,
                                     fingerprints *out);
/* The first kind that both know and that differs, else N_PRINTS. */
print_kind fingerprints_other(const fingerprints *a, const fingerprints *b);

#endif
