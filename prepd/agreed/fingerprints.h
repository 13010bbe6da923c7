/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprints.h: hashes by which two machines can tell whether they make the same rows.
 *
 * The same files become the same pixels and token ids only where the picture decoder, the video
 * decoder and the tokenizer are the same; that depends on the machine's libraries, the model's
 * files and our own code. A fingerprint is a hash of what one of the three makes of a fixed,
 * built-in input (image_fingerprint, video_fingerprint, tokenizer_fingerprint). Those of rows are
 * digests of rows that our code makes of built-in leases (worker/row_prints.h). The build id is a
 * hash of the sources that make rows (build_id.cmake); builds with different ids work together if
 * they have the same lease form and the same fingerprints.
 *
 * The daemon gets its own fingerprints from a separate process (serve/core/workers/fingerprinting.c), and
 * workers on other machines send theirs in JOIN. WELCOME and cursors carry only the first three,
 * since the others change with the list of leases. */
#ifndef TESSERA_PREPD_AGREED_FINGERPRINTS_H
#define TESSERA_PREPD_AGREED_FINGERPRINTS_H

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/base/status.h"

typedef enum print_kind {
    PRINT_IMAGES, /* what the decoders make of built-in files */
    PRINT_VIDEOS,
    PRINT_TOKENS, /* what the model's tokenizer makes of built-in texts */
    N_STREAM_PRINTS,
    PRINT_JPEG = N_STREAM_PRINTS, /* rows of JPEG files, and so on */
    PRINT_PNG,
    PRINT_WEBP,
    PRINT_RESIZING,
    PRINT_FRAMES, /* folders of frames */
    PRINT_TEXTS,
    PRINT_PACKING, /* shared and blank documents, filters and compression */
    PRINT_CLIPS,   /* video files */
    N_PRINTS
} print_kind;

/* The form of leases, terms and rows between a daemon and its workers. It is raised when a member
 * of a lease (serve/core/rows/payload.c) or of TERMS is added, removed or changes its meaning, when an
 * option that workers read does, and when the form of ROW or RECORDS changes. Workers of another
 * form cannot be understood and are refused. */
enum { LEASE_FORM = 1 };

typedef struct fingerprints {
    char of[N_PRINTS][HASH_TEXT]; /* 32 hex digits each; "" if not known */
} fingerprints;

extern const char *const print_names[N_PRINTS]; /* "images", "videos", .. */
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
