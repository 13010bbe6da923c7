/* fingerprints.h: hashes by which two machines can tell whether they make the same rows.
 *
 * The same files become the same pixels and token ids only where the picture decoder, the video
 * decoder and the tokenizer are the same; that depends on the machine's libraries, the model's
 * files and our own code. A fingerprint is a hash of what one of the three makes of a fixed,
 * built-in input (image_fingerprint, video_fingerprint, tokenizer_fingerprint). The build id stands
 * for our code: it is a hash of the sources that make rows (build_id.cmake).
 *
 * The daemon gets its own fingerprints from a separate process (serve/core/fingerprinting.c),
 * workers send theirs in JOIN, and a stream carries the daemon's in WELCOME and in every cursor. */
#ifndef TESSERA_PREPD_AGREED_FINGERPRINTS_H
#define TESSERA_PREPD_AGREED_FINGERPRINTS_H

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/base/status.h"

typedef enum print_kind { PRINT_IMAGES, PRINT_VIDEOS, PRINT_TOKENS, N_PRINTS } print_kind;

typedef struct fingerprints {
    char of[N_PRINTS][HASH_TEXT]; /* 32 hex digits each; "" if not known */
} fingerprints;

extern const char *const print_names[N_PRINTS]; /* "images", "videos", "tokens" */
extern const char prepd_build[HASH_TEXT];       /* the build id of this program */

void fingerprints_set(fingerprints *prints, print_kind kind, hash128 value);
/* Writes the member "fingerprints": {"images": "...", ...} with those that are known. */
void fingerprints_put(const fingerprints *prints, json_writer *writer);
/* Reads the member "fingerprints" of an object; without that member none is known. ST_PROTOCOL,
 * naming the source, for a text that is not a hash. */
WARN_UNUSED status fingerprints_read(const json_value *object, const char *source,
                                     fingerprints *out);
/* The first kind that both know and that differs; N_PRINTS if there is none. */
print_kind fingerprints_other(const fingerprints *ours, const fingerprints *theirs);

#endif
