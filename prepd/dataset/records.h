/* records.h: JSON records in files: one array, or a record per line; plain, gzip or zstd, with or
 * without a byte order mark.
 *
 * A scan hands out every record once, parsed; later any of them is read again from its place. What
 * is kept is a place per record, not its text. */
#ifndef TESSERA_PREPD_DATASET_RECORDS_H
#define TESSERA_PREPD_DATASET_RECORDS_H

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "common/json/json.h"
#include "prepd/dataset/unpack.h"

enum { RECORD_BYTES = JSON_ITEM_BYTES }; /* of one record; a longer one is refused */

typedef struct record_place {
    int64_t offset; /* in the unpacked file */
    int64_t line;   /* from 1 */
    int32_t bytes;
    int32_t file;
} record_place;

typedef struct record_files record_files;

/* The files of data.path: itself, or in a folder those named by data.split ("train", also as part
 * of a name: c4-train.00000-of-01024.json.gz), in order of their names. ST_NO_INPUT says what was
 * looked for. */
WARN_UNUSED status records_open(const conf *c, record_files **out);
void records_close(record_files **f);

const char *records_folder(const record_files *f);             /* absolute, of the files */
const char *records_name(const record_files *f, int32_t file); /* without its folder */

/* v: the record, borrowed during the call; or NULL, and `cause` says why it is none (file, line and
 * column). Another status than ST_OK ends the scan and is returned; ST_END ends it well. Broken
 * JSON in an array fails the whole; a broken line is one record. Blank lines are none. */
typedef status (*record_each)(void *user, const json_value *v, const record_place *at,
                              const char *cause);
WARN_UNUSED status records_scan(record_files *f, record_each each, void *user);

/* The record again; the caller frees it. ST_BAD_INPUT if the file changed meanwhile. */
WARN_UNUSED status records_read(record_files *f, const record_place *at, json_value **out);

/* Of the files as they lie there: paths, sizes, times of change; and how many bytes they unpack to,
 * -1 until they were scanned to the end. */
void records_stamp(const record_files *f, hasher *h);
int64_t records_unpacked(const record_files *f);
int64_t records_bytes(const record_files *f); /* as they lie there */
int64_t records_count(const record_files *f); /* of files */
unpack *records_unpack(const record_files *f, int64_t file);
void records_adopted(record_files *f); /* instead of a scan: every file was given its points */

/* Of each file's bytes, [records_count]; heap. records_digest adds their number and these. */
WARN_UNUSED status records_contents(const record_files *f, hash128 **out);
WARN_UNUSED status records_digest(const record_files *f, hasher *h);

/* False if some file must be read from restart points. */
bool records_random(const record_files *f);
/* A number that grows with the place and changes where reading can begin again. */
int64_t records_chunk(const record_files *f, const record_place *at);

#endif
