/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: reads and writes the safetensors format, as a file or as a block in memory.
 *
 *     offset   bytes   content
 *     0        8       N, the length of the header, little-endian
 *     8        N       the header, a JSON object:
 *                      {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                       "__metadata__": {"KEY": "TEXT", ...}}
 *     8 + N            the data; data_offsets count from here
 *
 * Source: https://github.com/huggingface/safetensors. Like that library the reader refuses N above
 * 100,000,000 or past the end, duplicate names, unknown dtypes, a shape whose product overflows or
 * does not match the offsets, overlaps and gaps between tensors, and a file that is too short or
 * too long. The message names the tensor. */
#ifndef TESSERA_COMMON_MODEL_FOLDER_SAFETENSORS_H
#define TESSERA_COMMON_MODEL_FOLDER_SAFETENSORS_H

#include <stdint.h>

#include "common/base/span.h"
#include "common/base/status.h"

/* Name, name in the format, size of an element in bytes. */
#define ST_DTYPES(X)                                                                               \
    X(DT_BOOL, "BOOL", 1)                                                                          \
    X(DT_U8, "U8", 1)                                                                              \
    X(DT_I8, "I8", 1)                                                                              \
    X(DT_F8_E4M3, "F8_E4M3", 1)                                                                    \
    X(DT_F8_E5M2, "F8_E5M2", 1)                                                                    \
    X(DT_U16, "U16", 2)                                                                            \
    X(DT_I16, "I16", 2)                                                                            \
    X(DT_F16, "F16", 2)                                                                            \
    X(DT_BF16, "BF16", 2)                                                                          \
    X(DT_U32, "U32", 4)                                                                            \
    X(DT_I32, "I32", 4)                                                                            \
    X(DT_F32, "F32", 4)                                                                            \
    X(DT_U64, "U64", 8)                                                                            \
    X(DT_I64, "I64", 8)                                                                            \
    X(DT_F64, "F64", 8)

typedef enum st_dtype {
#define ST_DTYPE_ENUM(name, text, size) name,
    ST_DTYPES(ST_DTYPE_ENUM)
#undef ST_DTYPE_ENUM
        DT_COUNT
} st_dtype;

/* The name in the format ("BF16"), and the bytes of an element. */
const char *st_dtype_name(st_dtype dtype);
size_t st_dtype_size(st_dtype dtype);

enum { ST_MAX_DIMS = 8 };

typedef struct st_tensor {
    const char *name; /* of a tensor that was read: owned by the st_file */
    st_dtype dtype;
    int n_dims; /* 0 = a scalar */
    int64_t shape[ST_MAX_DIMS];
    span data; /* of a tensor that was read: inside the mapped file or the caller's block */
} st_tensor;

/* An entry of "__metadata__". */
typedef struct st_meta {
    const char *key, *value;
} st_meta;

typedef struct st_file {
    st_tensor *tensors; /* in the order of their data */
    size_t n_tensors;
    st_meta *meta;
    size_t n_meta;
    /* private */
    void *map; /* the mapped file; NULL if the block is the caller's */
    size_t map_size;
    void *header;      /* the JSON document, which owns all texts */
    uint32_t *by_name; /* [n_tensors] indices into tensors, in the order of the names */
} st_file;

/* Maps the file read-only. Tensors point into the map until st_close. ST_NO_INPUT: the file does
 * not exist; ST_IO: it cannot be read; ST_BAD_INPUT: it is not valid safetensors. */
WARN_UNUSED status st_open(const char *path, st_file *out);
/* Reads a block in memory. Its bytes are borrowed and must outlive *out. Errors name `source`. */
WARN_UNUSED status st_parse(span block, const char *source, st_file *out);
/* Frees what st_open or st_parse made, and unmaps the file. Accepts NULL. */
void st_close(st_file *file);

/* The tensor of this name, and the text of this metadata key; NULL if there is none. */
const st_tensor *st_find(const st_file *file, const char *name);
const char *st_meta_find(const st_file *file, const char *key);
/* The number of elements, 1 for a scalar. */
int64_t st_count(const st_tensor *tensor);
/* Lets the whole pages inside this part of a mapped file leave the process's memory; they are read
 * from the file again when they are needed. Only for bytes of st_open: a block in memory would lose
 * its content. */
void st_forget(span part);
/* Finds a tensor that must exist with this dtype and number of dimensions (-1: any) and begin at a
 * multiple of its element size, so that it can be read in place. ST_BAD_INPUT, naming what is
 * wrong, otherwise. */
WARN_UNUSED status st_want(const st_file *file, const char *name, st_dtype dtype, int n_dims,
                           const char *source, const st_tensor **out);

/* Makes the header, with its length in front, of these tensors laid out in the given order. The
 * JSON is padded with spaces to a multiple of 8. Of each tensor's data only the size is used, and
 * it must agree with shape and dtype. Every tensor must begin at a multiple of its element size, so
 * tensors with larger dtypes are given first; ST_INTERNAL otherwise. *out is on the heap and the
 * caller frees it. */
WARN_UNUSED status st_header(const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                             size_t n_meta, uint8_t **out, size_t *out_size);
/* Makes header and data in one block on the heap, which the caller frees. */
WARN_UNUSED status st_pack(const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                           size_t n_meta, uint8_t **out, size_t *out_size);
/* Writes a file. The data goes to PATH.tmp, is synced to disk and renamed, and then the folder is
 * synced, so that a reader never sees half a file. ST_CANT_CREATE, ST_IO. */
WARN_UNUSED status st_write(const char *path, const st_tensor *tensors, size_t n_tensors,
                            const st_meta *meta, size_t n_meta);

#endif
