/* ship.h: the bytes of a lease's files, read here and sent along to a worker that has no data root
 * (data.ship). Bytes only: nothing is decoded, and nothing from outside the data folder, whatever
 * links lie in it (prepd/dataset/beneath.h). What cannot be read is said as the worker would
 * have found it, so that who reads a file does not enter the stream. */
#ifndef TESSERA_PREPD_SERVE_SHIP_H
#define TESSERA_PREPD_SERVE_SHIP_H

#include "common/conf/conf.h"
#include "common/json/json.h"
#include "prepd/dataset/dataset.h"
#include "proto/wire.h"

/* ST_CONFIG with the first file that lies outside, where some do. */
WARN_UNUSED status ship_check(const dataset *d);

/* Reads image j of the data set, of a folder of frames those of index [n] (NULL: all n), into new
 * parts of the message and writes
 *   "shipped":[{"size":of the file,"mtime":ns,"part":number in the message}...]
 * one per file; without "part" if it is larger than allowed or ends before its piece; or
 * {"errno":E}, or {"irregular":true}. */
WARN_UNUSED status ship_file(const dataset *d, int64_t j, const image_place *place,
                             const int64_t *index, int64_t n, const conf *limits, wire_msg *parts,
                             json_writer *w);

#endif
