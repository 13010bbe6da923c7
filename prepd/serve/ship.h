/* ship.h: sends the bytes of a lease's files along with the lease, for a worker that has no data
 * root (data.ship).
 *
 * Only bytes: nothing is decoded here. Nothing from outside the data folder is sent, whatever links
 * lie in it (prepd/dataset/dataset.h). A file that cannot be read is described as the worker would
 * have found it, so that the stream does not depend on who reads a file. */
#ifndef TESSERA_PREPD_SERVE_SHIP_H
#define TESSERA_PREPD_SERVE_SHIP_H

#include "common/conf/conf.h"
#include "common/json/json.h"
#include "prepd/dataset/dataset.h"
#include "proto/wire/wire.h"

/* Checks that every file of the data set lies inside its folder. CONFIG names the first that does
 * not, and says how many there are. */
WARN_UNUSED status ship_check(const dataset *data);

/* Reads image `image` of the data set into new parts of the message. Of a folder of frames it reads
 * frames index[0] to index[count - 1], or the first `count` where index is NULL. Writes one entry
 * per file:
 *
 *   "shipped":[{"size":of the file,"mtime":ns,"part":its number in the message}...]
 *
 * without "part" if the file is larger than `limits` allow or ends before the wanted piece; or
 * {"errno":E}, or {"irregular":true} if it is not a regular file. */
WARN_UNUSED status ship_file(const dataset *data, int64_t image, const image_place *place,
                             const int64_t *index, int64_t count, const conf *limits,
                             wire_msg *parts, json_writer *out);

#endif
