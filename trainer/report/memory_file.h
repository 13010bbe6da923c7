/* memory_file.h: job.dump_folder/memory.json, which has the plan of a rank's memory to the byte:
 *
 *   {"device":"CPU","device_bytes":N,"usable_bytes":N,"sharers":N,"planned_by_options":N,
 *    "total":N,"regions":{"parameters":N, ..}}
 *
 * "total" and "regions" are planned by the shapes of the stream, "planned_by_options" as trainer
 * plan does it. On a GPU, regions whose names begin with "host_" are not part of the total. */
#ifndef TESSERA_TRAINER_REPORT_MEMORY_FILE_H
#define TESSERA_TRAINER_REPORT_MEMORY_FILE_H

#include "trainer/plan/memory.h"
#include "trainer/run/session.h"

/* Writes the file anew. A disk that refuses it costs a warning. */
WARN_UNUSED status memory_file_write(const char *folder, const session *session,
                                     const memory_plan *plan);

#endif
