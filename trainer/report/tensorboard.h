/* tensorboard.h: scalars in TensorBoard's event files, written by hand: the format is small and
 * its libraries are not.
 *
 * A file is TFRecords: u64 length, masked crc32c of it, data, masked crc32c of the data, all
 * little-endian. Data is a protobuf Event {1 double wall_time, 2 int64 step, 3 string file_version,
 * 5 Summary {1 Value {1 string tag, 2 float simple_value}}}; the first names the version.
 * Source: tensorflow/core/lib/io/record_writer.h, util/event.proto, framework/summary.proto. */
#ifndef TESSERA_TRAINER_REPORT_TENSORBOARD_H
#define TESSERA_TRAINER_REPORT_TENSORBOARD_H

#include <stdint.h>

#include "common/base/status.h"

typedef struct tensorboard tensorboard;

typedef struct scalar {
    const char *tag;
    double value;
} scalar;

/* A new file FOLDER/events.out.tfevents.SECONDS.HOST.PID, the folder made if absent. */
WARN_UNUSED status tensorboard_open(const char *folder, tensorboard **out);
void tensorboard_close(tensorboard **t);
/* One event with these scalars; handed to the system before it returns. */
WARN_UNUSED status tensorboard_add(tensorboard *t, int64_t step, const scalar *list, int n);

#endif
