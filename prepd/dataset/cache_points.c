/* SPDX-License-Identifier: Apache-2.0 */
/* cache_points.c: the restart points of compressed files (unpack.h) as three tensors: what each
 * file has, the points, and the 32 KiB windows of those points that need one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/dataset/cache_file.h"
#include "prepd/dataset/unpack.h"

enum {
    FILE_NUMBERS = 2,  /* of each file: number of restart points, unpacked bytes */
    POINT_NUMBERS = 3, /* of each point: unpacked, packed, and bits with fresh above them */
    FRESH = 8,         /* the bit in which fresh stands */
    FILE_BITS = 32,    /* of a place: the number of its file is above its bytes */
};

static void store_point(const unpack_restart *point, int64_t *to, uint8_t **windows)
{
    to[0] = point->unpacked;
    to[1] = point->packed;
    to[2] = point->bits | point->fresh << FRESH;
    if (point->fresh)
        return;
    memcpy(*windows, point->window, UNPACK_WINDOW);
    *windows += UNPACK_WINDOW;
}

status kept_points_of(const record_files *files, kept_points *out)
{
    const int64_t n_files = records_count(files);
    int64_t n_points = 0, n_windows = 0, at = 0;
    for (int64_t file = 0; file < n_files; file++) {
        const unpack *unpacked = records_unpack(files, file);
        for (int64_t i = 0; i < unpack_points(unpacked); i++)
            n_windows += !unpack_restarts(unpacked)[i].fresh;
        n_points += unpack_points(unpacked);
    }
    out->files = malloc(((size_t)n_files * FILE_NUMBERS + 1) * sizeof *out->files);
    out->points = malloc(((size_t)n_points * POINT_NUMBERS + 1) * sizeof *out->points);
    out->windows = malloc((size_t)n_windows * UNPACK_WINDOW + 1);
    if (!out->files || !out->points || !out->windows)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " restart points", n_points);
    uint8_t *windows = out->windows;
    for (int64_t file = 0; file < n_files; file++) {
        const unpack *unpacked = records_unpack(files, file);
        out->files[file * FILE_NUMBERS] = unpack_points(unpacked);
        out->files[file * FILE_NUMBERS + 1] = unpack_total(unpacked);
        for (int64_t i = 0; i < unpack_points(unpacked); i++)
            store_point(&unpack_restarts(unpacked)[i], out->points + POINT_NUMBERS * at++,
                        &windows);
    }
    out->tensors[0] = kept_column("files", DT_I64, n_files * FILE_NUMBERS, out->files);
    out->tensors[1] = kept_column("points", DT_I64, n_points * POINT_NUMBERS, out->points);
    out->tensors[2] = kept_column("windows", DT_U8, n_windows * UNPACK_WINDOW, out->windows);
    return ST_OK;
}

void kept_points_done(kept_points *points)
{
    free(points->files);
    free(points->points);
    free(points->windows);
}

/* Gives one file its `bytes` restart points. *windows and *inout_windows, the first window that is
 * left and how many there are, are moved past the windows of this file. */
static status adopt(unpack *file, const uint8_t *words, int64_t bytes, int64_t total,
                    const uint8_t **windows, int64_t *inout_windows)
{
    unpack_restart *point = calloc((size_t)bytes + 1, sizeof *point);
    status st = ST_OK;
    if (!point)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " restart points", bytes);
    for (int64_t i = 0; i < bytes && st == ST_OK; i++) {
        const int64_t flags = kept_number(words, i * POINT_NUMBERS + 2);
        point[i] = (unpack_restart){.unpacked = kept_number(words, i * POINT_NUMBERS),
                                    .packed = kept_number(words, i * POINT_NUMBERS + 1),
                                    .bits = (int)(flags & ((1 << FRESH) - 1)),
                                    .fresh = flags >> FRESH & 1};
        if (point[i].fresh)
            continue;
        if ((*inout_windows)-- <= 0)
            st = FAIL(ST_BAD_INPUT, "there are fewer windows than restart points that need one");
        else
            point[i].window = (uint8_t *)(uintptr_t)*windows; /* it is only read */
        *windows += st == ST_OK ? UNPACK_WINDOW : 0;
    }
    if (st == ST_OK)
        st = unpack_adopt(file, point, bytes, total);
    free(point);
    return st;
}

status kept_points_take(record_files *to, const st_file *file, const char *path)
{
    const uint8_t *files, *points;
    const st_tensor *tensor;
    int64_t n_files, n_points;
    TRY(kept_words(file, path, "files", FILE_NUMBERS, records_count(to), &files, &n_files));
    TRY(kept_words(file, path, "points", POINT_NUMBERS, -1, &points, &n_points));
    TRY(st_want(file, "windows", DT_U8, 1, path, &tensor));
    const uint8_t *windows = tensor->data.data;
    int64_t left = tensor->shape[0] / UNPACK_WINDOW;
    for (int64_t k = 0; k < n_files; k++) {
        const int64_t count = kept_number(files, k * FILE_NUMBERS);
        if (count < 1 || count > n_points)
            return FAIL_IN(ST_BAD_INPUT, path, "it gives a file %" PRId64 " restart points", count);
        TRY(adopt(records_unpack(to, k), points, count, kept_number(files, k * FILE_NUMBERS + 1),
                  &windows, &left));
        points += count * POINT_NUMBERS * (int64_t)sizeof(int64_t);
        n_points -= count;
    }
    return ST_OK;
}

void kept_points_forget(record_files *files)
{
    for (int64_t k = 0; k < records_count(files); k++)
        unpack_forget(records_unpack(files, k));
}

bool kept_place_is_sound(const record_files *files, const record_place *at)
{
    return at->file >= 0 && at->file < records_count(files) && at->line >= 1 && at->bytes >= 0 &&
           at->bytes <= RECORD_BYTES && at->offset >= 0 &&
           at->offset <= unpack_total(records_unpack(files, at->file)) - at->bytes;
}

void kept_put_place(const record_place *at, int64_t out[3])
{
    out[0] = at->offset;
    out[1] = at->line;
    out[2] = (int64_t)at->file << FILE_BITS | (uint32_t)at->bytes;
}

record_place kept_get_place(const uint8_t *words, int64_t index)
{
    const int64_t which = kept_number(words, index + 2);
    return (record_place){.offset = kept_number(words, index),
                          .line = kept_number(words, index + 1),
                          .bytes = (int32_t)(uint32_t)which,
                          .file = (int32_t)(which >> FILE_BITS)};
}
