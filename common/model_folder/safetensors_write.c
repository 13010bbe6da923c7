/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c: writes safetensors: the header alone, a block in memory, a file. */
#include "common/model_folder/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/json/json.h"

enum { LENGTH_BYTES = 8 };

/* Checks a tensor that would begin at data byte `at`. The tensors come from our own code, so a
 * fault is our mistake. It is reported all the same, because a wrong file would be noticed only
 * when it is read. */
static status check_tensor(const st_tensor *tensor, uint64_t at)
{
    uint64_t bytes = st_dtype_size(tensor->dtype);
    if (tensor->dtype >= DT_COUNT || tensor->n_dims < 0 || tensor->n_dims > ST_MAX_DIMS)
        return FAIL(ST_INTERNAL, "tensor \"%s\" has an unknown dtype or too many dimensions",
                    tensor->name);
    for (int i = 0; i < tensor->n_dims; i++)
        if (tensor->shape[i] < 0 ||
            __builtin_mul_overflow(bytes, (uint64_t)tensor->shape[i], &bytes))
            return FAIL(ST_INTERNAL,
                        "tensor \"%s\" has a negative dimension, or its size overflows",
                        tensor->name);
    if (bytes != tensor->data.size)
        return FAIL(ST_INTERNAL,
                    "tensor \"%s\": shape and dtype need %llu bytes, but %zu are given",
                    tensor->name, (unsigned long long)bytes, tensor->data.size);
    if (at % st_dtype_size(tensor->dtype) != 0)
        return FAIL(ST_INTERNAL,
                    "tensor \"%s\" of %s would begin at data byte %llu: give larger dtypes first",
                    tensor->name, st_dtype_name(tensor->dtype), (unsigned long long)at);
    return ST_OK;
}

static void put_tensor(json_writer *writer, const st_tensor *tensor, uint64_t at)
{
    json_begin_key_object(writer, tensor->name);
    json_put_key_cstr(writer, "dtype", st_dtype_name(tensor->dtype));
    json_begin_key_array(writer, "shape");
    for (int i = 0; i < tensor->n_dims; i++)
        json_put_int(writer, tensor->shape[i]);
    json_end_array(writer);
    json_begin_key_array(writer, "data_offsets");
    json_put_int(writer, (int64_t)at);
    json_put_int(writer, (int64_t)(at + tensor->data.size));
    json_end_array(writer);
    json_end_object(writer);
}

static status put_header(json_writer *writer, const st_tensor *tensors, size_t n_tensors,
                         const st_meta *meta, size_t n_meta)
{
    uint64_t at = 0;
    json_begin_object(writer);
    if (n_meta) {
        json_begin_key_object(writer, "__metadata__");
        for (size_t i = 0; i < n_meta; i++)
            json_put_key_cstr(writer, meta[i].key, meta[i].value);
        json_end_object(writer);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        TRY(check_tensor(&tensors[i], at));
        put_tensor(writer, &tensors[i], at);
        at += tensors[i].data.size;
    }
    json_end_object(writer);
    return ST_OK;
}

/* Makes the header, with room for `extra` bytes after it in the same block. */
static status make_block(const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                         size_t n_meta, size_t extra, uint8_t **out, size_t *out_header)
{
    json_writer writer;
    char *text = NULL;
    size_t size = 0;
    json_writer_init(&writer);
    status st = put_header(&writer, tensors, n_tensors, meta, n_meta);
    if (st == ST_OK)
        st = json_writer_take(&writer, &text, &size);
    json_writer_done(&writer);
    TRY(st);
    size_t padded = (size + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES, total;
    uint8_t *block = NULL;
    if (!__builtin_add_overflow(padded + LENGTH_BYTES, extra, &total))
        block = (uint8_t *)malloc(total);
    if (!block) {
        free(text);
        return FAIL(ST_NO_MEMORY, "no memory for a block of tensors");
    }
    store_u64(block, padded);
    memcpy(block + LENGTH_BYTES, text, size);
    memset(block + LENGTH_BYTES + size, ' ', padded - size);
    free(text);
    *out = block;
    *out_header = LENGTH_BYTES + padded;
    return ST_OK;
}

status st_header(const st_tensor *tensors, size_t n_tensors, const st_meta *meta, size_t n_meta,
                 uint8_t **out, size_t *out_size)
{
    return make_block(tensors, n_tensors, meta, n_meta, 0, out, out_size);
}

status st_pack(const st_tensor *tensors, size_t n_tensors, const st_meta *meta, size_t n_meta,
               uint8_t **out, size_t *out_size)
{
    size_t data = 0, at;
    uint8_t *block;
    for (size_t i = 0; i < n_tensors; i++)
        if (__builtin_add_overflow(data, tensors[i].data.size, &data))
            return FAIL(ST_NO_MEMORY, "the size of the tensors together overflows");
    TRY(make_block(tensors, n_tensors, meta, n_meta, data, &block, &at));
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensors[i].data.size)
            memcpy(block + at, tensors[i].data.data, tensors[i].data.size);
        at += tensors[i].data.size;
    }
    *out = block;
    *out_size = at;
    return ST_OK;
}

static status write_part(int fd, const char *path, const void *data, size_t size)
{
    return file_write_all(fd, data, size)
               ? ST_OK
               : FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
}

static status write_tensors(int fd, const char *path, const st_tensor *tensors, size_t n_tensors,
                            const uint8_t *header, size_t header_size)
{
    TRY(write_part(fd, path, header, header_size));
    for (size_t i = 0; i < n_tensors; i++)
        TRY(write_part(fd, path, tensors[i].data.data, tensors[i].data.size));
    if (fsync(fd) != 0)
        return FAIL_IN(ST_IO, path, "fsync failed: %s", strerror(errno));
    return ST_OK;
}

status st_write(const char *path, const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                size_t n_meta)
{
    char temporary[PATH_MAX];
    uint8_t *header;
    size_t header_size;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) >= sizeof temporary)
        return FAIL_IN(ST_CANT_CREATE, path, "the path is too long");
    TRY(st_header(tensors, n_tensors, meta, n_meta, &header, &header_size));
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        free(header);
        return FAIL_IN(ST_CANT_CREATE, temporary, "cannot create: %s", strerror(errno));
    }
    status st = write_tensors(fd, temporary, tensors, n_tensors, header, header_size);
    free(header);
    if (close(fd) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, temporary, "close failed: %s", strerror(errno));
    if (st == ST_OK && rename(temporary, path) != 0)
        st = FAIL_IN(ST_CANT_CREATE, path, "rename failed: %s", strerror(errno));
    if (st != ST_OK) {
        unlink(temporary);
        return st;
    }
    return file_sync_parent(path);
}
