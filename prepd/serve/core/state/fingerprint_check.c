/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint_check.c: finds workers and cursors whose fingerprints differ from this daemon's,
 * which would make other rows (prepd/agreed/fingerprints.h). The daemon's own come from
 * fingerprinting.c. */
#include <string.h>

#include "prepd/serve/core/state/dispatch_state.h"

bool print_needs_videos(print_kind kind)
{
    return kind == PRINT_VIDEOS || kind == PRINT_CLIPS;
}

bool prints_are_wanted(const dispatch *state, print_kind kind)
{
    return !state->fingerprints.of[kind][0] && (state->videos || !print_needs_videos(kind));
}

bool fingerprints_are_known(const dispatch *state)
{
    for (int k = 0; k < N_STREAM_PRINTS; k++)
        if (prints_are_wanted(state, (print_kind)k))
            return false;
    return true;
}

print_kind fingerprints_of_worker(const dispatch *state, const worker_seat *worker)
{
    const fingerprints *theirs = &worker->fingerprints, *ours = &state->fingerprints;
    print_kind other = fingerprints_other(theirs, ours);
    if (other < N_PRINTS || !worker->other_build || !theirs->of[PRINT_TOKENS][0])
        return other;
    for (int k = N_STREAM_PRINTS; k < N_PRINTS; k++)
        if (!theirs->of[k][0] && ours->of[k][0] && !print_needs_videos((print_kind)k))
            return (print_kind)k;
    return N_PRINTS;
}

static const struct {
    const char *does, *remedy;
} differs[N_PRINTS] = {
    [PRINT_IMAGES] = {"decodes pictures", "libvips and libjpeg"},
    [PRINT_VIDEOS] = {"decodes videos", "FFmpeg"},
    [PRINT_TOKENS] = {"cuts texts into tokens", "prepd and utf8proc"},
    [PRINT_JPEG] = {"makes rows of JPEG files", "prepd, libvips and libjpeg"},
    [PRINT_PNG] = {"makes rows of PNG files", "prepd, libvips and libpng"},
    [PRINT_WEBP] = {"makes rows of WebP files", "prepd, libvips and libwebp"},
    [PRINT_RESIZING] = {"resizes pictures", "prepd and libvips"},
    [PRINT_FRAMES] = {"makes rows of folders of frames", "prepd, libvips and libjpeg"},
    [PRINT_TEXTS] = {"makes rows of texts", "prepd and utf8proc"},
    [PRINT_PACKING] = {"packs rows", "prepd"},
    [PRINT_CLIPS] = {"makes rows of video files", "prepd and FFmpeg"},
};

status fingerprints_refuse_worker(const fingerprints *theirs, const fingerprints *ours,
                                  print_kind kind, int64_t pid, const char *host, const char *name)
{
    return FAIL_IN(ST_MISMATCH, name,
                   "this worker (pid %lld on %s) %s differently from the daemon: fingerprint of %s "
                   "%s there, %s here; install the same %s on both machines",
                   (long long)pid, host, differs[kind].does, print_names[kind],
                   theirs->of[kind][0] ? theirs->of[kind] : "none", ours->of[kind],
                   differs[kind].remedy);
}

status fingerprints_check_cursor(const source *section, const json_value *cursor, const char *name)
{
    fingerprints was;
    TRY(fingerprints_read(cursor, name, &was));
    const print_kind kind = fingerprints_other(&was, &section->fingerprints);
    if (kind == N_PRINTS)
        return ST_OK;
    return FAIL_IN(ST_CONFIG, name,
                   "the rows before this cursor were made by a daemon that %s differently: "
                   "fingerprint of %s %s then, %s now; install the earlier %s again, or raise "
                   "data.generation",
                   differs[kind].does, print_names[kind], was.of[kind],
                   section->fingerprints.of[kind], differs[kind].remedy);
}

void fingerprints_of_source(const dispatch *state, source *section)
{
    const bool videos =
        section->data->adapter->videos && section->data->adapter->videos(section->data);
    section->fingerprints = (fingerprints){0};
    for (int k = 0; k < N_STREAM_PRINTS; k++)
        if (videos || k != PRINT_VIDEOS)
            memcpy(section->fingerprints.of[k], state->fingerprints.of[k], HASH_TEXT);
}
