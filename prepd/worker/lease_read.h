/* lease_read.h: what stands in a lease (prepd/serve/payload.c writes it); its files are in refs.h,
 * its clips in clips.h. */
#ifndef TESSERA_PREPD_WORKER_LEASE_READ_H
#define TESSERA_PREPD_WORKER_LEASE_READ_H

#include "prepd/worker/worker.h"

/* Of its stream. */
const conf *lease_conf(const workshop *s, const json_value *lease);
/* Folder of the images: the worker's own, or the lease's. */
WARN_UNUSED status lease_root(const workshop *s, const json_value *lease, const char **out);
/* Why a sample is refused travels to every machine, so it names the file as the lease did: text
 * without the root. */
const char *lease_cause(const char *root, const char *text);

/* A failure that says nothing of the file in work: the lease's, or this process's or machine's,
 * which then gives up, and the lease is judged as after a crash. A machine with files of its own
 * (--data-root) does not, where it cannot read one: see below. */
bool lease_must_end(const workshop *s, status st);
/* The file cannot be had here: whether that is its fault, the dispatcher finds out. */
bool lease_is_missing(const workshop *s, status st);

/* {"turns": ...} as a sample with n_images images; in the arena. */
WARN_UNUSED status lease_read_sample(const json_value *object, int32_t n_images, arena *a,
                                     sample *out);

#endif
