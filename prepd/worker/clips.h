/* SPDX-License-Identifier: Apache-2.0 */
/* clips.h: the clips of a lease: the times of their frames, and their patches.
 *
 * A clip is a video file or a folder of frames. Which of its frames a row shows is decided by the
 * plan and stands in the lease (prepd/serve/core/rows/payload.c). Frames go in pairs, of which Qwen3-VL
 * makes one patch with two frames; the last frame of an odd number is paired with itself. */
#ifndef TESSERA_PREPD_WORKER_CLIPS_H
#define TESSERA_PREPD_WORKER_CLIPS_H

#include "prepd/sample/fit.h"
#include "prepd/worker/media/image_files.h"
#include "prepd/worker/worker.h"

typedef struct lease_clip {
    int64_t *index;   /* [n_frames] frames to take, ascending */
    int64_t n_frames; /* 0 for a still picture */
    double fps;       /* frames per second of the clip */
} lease_clip;

/* Reads the list "clips" of a sample or document: an entry per image, null for a still picture.
 * Without the list all images are still. *out [n_images] is in the arena. */
WARN_UNUSED status clips_read(const json_value *list, int32_t n_images, arena *memory,
                              lease_clip **out);

/* What an image becomes in the text: pads is its number of visual tokens, for a clip that of each
 * pair of frames. */
WARN_UNUSED status clips_visual(const lease_clip *clip, int64_t pads, arena *memory,
                                chat_visual *out);

/* What the index records of a file, or of a folder of frames. */
typedef struct file_facts {
    int64_t bytes, mtime_ns; /* set even if the rest cannot be found out */
    video_info info;         /* frames is 0 for a still picture */
} file_facts;

WARN_UNUSED status clips_facts(workshop *shop, const conf *options, const char *root,
                               const file_ref *file, file_facts *out);

/* Decodes a clip and writes its patches, patches [pairs x h x w, 1536]. */
WARN_UNUSED status clips_patches(workshop *shop, const conf *options, const char *root,
                                 const file_ref *file, const lease_clip *clip, fit_grid grid,
                                 uint8_t *patches);

#endif
