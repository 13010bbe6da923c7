/* row_prints.h: the fingerprints of rows: a digest of rows made by this program, from a built-in
 * list of leases.
 *
 * The leases (print_leases.c) are done as any others are, by make_records and make_row, and the
 * rows are decoded as a receiver decodes them. So two builds with the same fingerprints make the
 * same rows of the same leases, as far as the list goes: it has every format, decoder, resampler
 * and form of document (tests/style/leases checks that). Nothing is read from the disk. */
#ifndef TESSERA_PREPD_WORKER_ROW_PRINTS_H
#define TESSERA_PREPD_WORKER_ROW_PRINTS_H

#include "prepd/agreed/fingerprints.h"
#include "prepd/worker/image_load.h"

/* Makes those of pictures and texts: PRINT_JPEG to PRINT_PACKING. */
WARN_UNUSED status row_prints_make(const image_api *images, fingerprints *inout_prints);
/* Makes PRINT_CLIPS. */
WARN_UNUSED status row_prints_make_clips(const image_api *images, const video_api *videos,
                                         fingerprints *inout_prints);

#endif
