/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h: writes scalars to TensorBoard's event files. The format is written by hand because
 * it is small and the libraries that write it are not.
 *
 * A file is a row of TFRecords, each of which is a u64 length, the masked crc32c of the length, the
 * data, and the masked crc32c of the data, all little-endian. The data is a protobuf Event {1
 * double wall_time, 2 int64 step, 3 string file_version, 5 Summary {1 Value {1 string tag, 2 float
 * simple_value}}}. The first Event of a file holds only the time and the version.
 * Source: TensorFlow's tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto and
 * tensorflow/core/framework/summary.proto. */
#ifndef TESSERA_TRAINER_REPORT_TENSORBOARD_H
#define TESSERA_TRAINER_REPORT_TENSORBOARD_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct tensorboard tensorboard;

typedef struct scalar {
    const char *tag;
    double value;
} scalar;

/* Makes a new file FOLDER/events.out.tfevents.SECONDS.HOST.PID, and the folder if it is absent. */
WARN_UNUSED status tensorboard_open(const char *folder, tensorboard **out);
void tensorboard_close(tensorboard **board);
/* Writes one event with these `count` scalars and hands it to the system before it returns. */
WARN_UNUSED status tensorboard_add(tensorboard *board, int64_t step, const scalar *list, int count);

#endif
