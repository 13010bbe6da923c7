/* lease_read.h: reads the members of a lease, which prepd/serve/core/payload.c writes. Its files
 * are read by refs.h, its clips by clips.h. */
#ifndef TESSERA_PREPD_WORKER_LEASE_READ_H
#define TESSERA_PREPD_WORKER_LEASE_READ_H

#include "prepd/worker/worker.h"

/* The options of the lease's stream, train or eval. */
const conf *lease_conf(const workshop *shop, const json_value *lease);
/* The folder of the images: this worker's --data-root, or the one the lease names. */
WARN_UNUSED status lease_root(const workshop *shop, const json_value *lease, const char **out);
/* The text of a failure without the root. The cause of a bad sample travels to other machines, so
 * it must name the file as the lease does. */
const char *lease_cause(const char *root, const char *text);

/* True for a failure that says nothing about the file in work: the lease is malformed, or this
 * process or machine is in trouble. The worker then gives up, and the lease is judged as after a
 * crash. A worker with files of its own (--data-root) goes on if it cannot read one:
 * lease_is_missing. */
bool lease_must_end(const workshop *shop, status code);
/* True for a file that cannot be read here.
 * The dispatcher finds out whether the file is to blame. */
bool lease_is_missing(const workshop *shop, status code);

/* Reads {"id": .., "turns": [..]} as a sample with n_images images, in the arena. */
WARN_UNUSED status lease_read_sample(const json_value *object, int32_t n_images, arena *memory,
                                     sample *out);

#endif
