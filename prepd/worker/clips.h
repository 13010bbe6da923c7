/* clips.h: the clips of a lease: when their frames are, and their patches. A clip is a video file
 * or a folder of frames; which frames are taken is said by the lease (prepd/serve/payload.c). */
#ifndef TESSERA_PREPD_WORKER_CLIPS_H
#define TESSERA_PREPD_WORKER_CLIPS_H

#include "prepd/sample/fit.h"
#include "prepd/worker/refs.h"
#include "prepd/worker/worker.h"

typedef struct lease_clip {
    int64_t *index; /* [n] frames taken, ascending; n 0: a still picture */
    int64_t n;
    double fps;
} lease_clip;

/* "clips" of a sample or document: one per image, null for a still picture; all still without the
 * list. In the arena. */
WARN_UNUSED status clips_read(const json_value *list, int32_t n_images, arena *a, lease_clip **out);

/* What the k-th image is in the text; pads: of the picture, or of each pair of frames. */
WARN_UNUSED status clips_visual(const lease_clip *clip, int64_t pads, arena *a, chat_visual *out);

/* What the index keeps of a file, or of a folder of frames. */
typedef struct file_facts {
    int64_t bytes, mtime_ns; /* given even if the rest cannot be had */
    video_info info;         /* frames 0: a still picture */
} file_facts;

WARN_UNUSED status clips_facts(workshop *s, const conf *c, const char *root, const file_ref *f,
                               file_facts *out);

/* patches [pairs x h x w, 1536] written. */
WARN_UNUSED status clips_patches(workshop *s, const conf *c, const char *root, const file_ref *f,
                                 const lease_clip *clip, fit_grid grid, uint8_t *patches);

#endif
