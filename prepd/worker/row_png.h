/* row_png.h: the pictures of a row as PNG files, to look at what the model gets: turned upright,
 * resized, before normalisation. */
#ifndef TESSERA_PREPD_WORKER_ROW_PNG_H
#define TESSERA_PREPD_WORKER_ROW_PNG_H

#include "proto/row/batch.h"

/* Writes every picture of the row and every frame of its clips, and prints a line for each picture
 * or clip. A path that ends in .png is the file of a single picture. Any other is a folder, made if
 * it is not there, for image-0.png and clip-1-frame-00.png, numbered as the sample shows them.
 * `program` is argv[0]. ST_USAGE if the row has no picture, or a file is named for several. */
WARN_UNUSED status row_png_write(const row *one, const char *path, const char *program);

#endif
