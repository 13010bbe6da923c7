/* SPDX-License-Identifier: Apache-2.0 */
/* video_file.h: small video files of moving stripes, made by FFmpeg for the tests of videos.
 *
 * The ending of the name chooses the container. Frame k shows grey stripes that move by `seed`
 * pixels a frame, and in its upper left quarter the colour of k. Same arguments, same bytes. */
#ifndef TESSERA_TESTS_VIDEO_FILE_H
#define TESSERA_TESTS_VIDEO_FILE_H

#include <stdbool.h>

typedef struct video_plan {
    const char *encoder; /* libx264, mpeg4, mjpeg, libvpx-vp9, ... */
    int width, height;   /* even */
    int frames;
    const char *rate; /* such as 24000/1001 */
    int seed;
} video_plan;

/* False: this FFmpeg has no such encoder. Ends the program if anything else fails. */
bool video_file_write(const char *path, const video_plan *video);

#endif
