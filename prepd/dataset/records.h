/* SPDX-License-Identifier: Apache-2.0 */
/* records.h: reads a file, plain or compressed, line by line, and says where each line lies. */
#ifndef TESSERA_PREPD_DATASET_RECORDS_H
#define TESSERA_PREPD_DATASET_RECORDS_H

#include <stdbool.h>

#include "common/base/hash.h"
#include "common/base/span.h"
#include "common/conf/conf.h"
#include "common/json/json.h"
#include "prepd/dataset/unpack.h"

typedef struct line_place {
    int64_t offset; /* of its first byte in the unpacked file */
    int64_t line;   /* from 1 */
} line_place;

bool line_is_blank(span line); /* it has nothing but spaces, tabs and carriage returns */

/* Receives one line without its end, borrowed during the call. A byte order mark at the beginning
 * of the file is left out. If the line is longer than `most` bytes, its data is NULL. */
typedef status (*line_each)(void *user, span line, const line_place *at);

/* Calls `each` for every line of a file of which nothing has been read yet. Any status of `each`
 * but ST_OK ends the reading and is returned. Needs memory for a buffer and for the longest line,
 * at most `most` bytes. */
WARN_UNUSED status lines_each(unpack *file, int64_t most, line_each each, void *user);

/* Records in files, which are plain or compressed with gzip or zstd, and may begin with
 * a byte order mark. A file of JSON is one array or has a record per line. If data.format is text,
 * the files may also be .txt files of plain text (plain_text.c).
 *
 * A scan hands out every record once, parsed. Later any of them can be read again from its place,
 * so what stays in memory is a place per record and not its text. */

enum {
    RECORD_BYTES = JSON_ITEM_BYTES
}; /* the most that one record may have; a longer one is bad */

typedef struct record_place {
    int64_t offset; /* in the unpacked file */
    int64_t line;   /* from 1 */
    int32_t bytes;  /* 0 for a record that was not read */
    int32_t file;   /* position in the list of files */
} record_place;

typedef struct record_files record_files;

/* What the files hold. */
typedef enum record_form {
    RECORDS_JSON,   /* JSON records */
    RECORDS_BLOCKS, /* one .txt file: documents with blank lines between them */
    RECORDS_FILES,  /* a folder of .txt files, each of which is a document */
} record_form;

/* Opens the files of data.path: that file itself, or the files of JSON in that folder which
 * data.split names ("train", also as a word of a longer name: c4-train.00000-of-01024.json.gz), in
 * the order of their names. If data.format is text and the folder has no file of JSON, all of its
 * .txt files are taken. ST_NO_INPUT says what was looked for. ST_CONFIG if only some of the .txt
 * files have data.split or eval.split in their names. */
WARN_UNUSED status records_open(const conf *options, record_files **out);
void records_close(record_files **files);

record_form records_form(const record_files *files);
/* Whether data.path is a folder from which data.split chooses files, so that a part of it can be
 * held out. False for a file, and for a folder of .txt files. */
bool records_have_splits(const conf *options);
const char *records_folder(const record_files *files);             /* absolute */
const char *records_name(const record_files *files, int32_t file); /* without its folder */

/* Receives one record, borrowed during the call. If it cannot be used, `value` is NULL and `cause`
 * says why, with file and line. */
typedef status (*record_each)(void *user, const json_value *value, const record_place *at,
                              const char *cause);
/* Reads every file of JSON from its beginning to its end, and notes its restart points. A line that
 * is not JSON is one bad record; broken JSON in an array, or a file of which no line looks like
 * JSON, is ST_BAD_INPUT for the whole; blank lines are skipped. Any status of `each` but ST_OK ends
 * the scan and is returned, except that ST_END becomes ST_OK. */
WARN_UNUSED status records_scan(record_files *files, record_each each, void *user);

/* Reads the bytes of a record again; *out is good until the next call. ST_BAD_INPUT if the file
 * changed in the meantime. */
WARN_UNUSED status records_bytes_of(record_files *files, const record_place *at, const char **out);
/* Reads a record of JSON again; the caller frees it. ST_BAD_INPUT if the file changed in the
 * meantime. Up to four files stay open between calls. */
WARN_UNUSED status records_read(record_files *files, const record_place *at, json_value **out);

/* Adds path, size and time of change of every file to a digest. */
void records_stamp(const record_files *files, hasher *hash);
int64_t records_unpacked(const record_files *files); /* bytes of all files, unpacked; -1 until all
                                                      * of them were scanned to the end */
int64_t records_bytes(const record_files *files);    /* bytes of all files as they are on disk */
int64_t records_count(const record_files *files);    /* how many files */
unpack *records_unpack(const record_files *files, int64_t file);
/* Call this instead of a scan, once every file was given its restart points (unpack_adopt). */
void records_adopted(record_files *files);

/* The digest of each file's bytes, [records_count]; the caller frees it. */
WARN_UNUSED status records_contents(const record_files *files, hash128 **out);
/* Adds the number of files and these digests to a digest. */
WARN_UNUSED status records_digest(const record_files *files, hasher *hash);

/* False if some file can only be entered at restart points. */
bool records_random(const record_files *files);
/* The number of the restart point before a place, counted over all files in order. */
int64_t records_chunk(const record_files *files, const record_place *at);

#endif
