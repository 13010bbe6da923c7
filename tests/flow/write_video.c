/* SPDX-License-Identifier: Apache-2.0 */
/* write_video.c: writes a video file for the flow tests (tests/video_file.h).
 *
 *   write_video OUT ENCODER WIDTH HEIGHT FRAMES RATE SEED
 *
 * Exit code 77: this FFmpeg has no such encoder. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/video_file.h"

enum { USAGE = 64, SKIPPED = 77 };

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "write_video OUT ENCODER WIDTH HEIGHT FRAMES RATE SEED\n");
        return USAGE;
    }
    const video_plan video = {.encoder = argv[2],
                              .width = atoi(argv[3]),
                              .height = atoi(argv[4]),
                              .frames = atoi(argv[5]),
                              .rate = argv[6],
                              .seed = atoi(argv[7])};
    return video_file_write(argv[1], &video) ? 0 : SKIPPED;
}
