/* safetensors.h: the container of tensors, as a file (mapped) and as a block in memory.
 *
 * 8 bytes little-endian header length N, N bytes of JSON, then data; offsets are relative to the
 * end of the header (spec section 2.5). The reader refuses: N over 100,000,000 or past the end,
 * duplicate names, unknown dtypes, shapes whose product overflows or differs from the offsets,
 * overlap, holes, data short of or beyond the file: each by tensor name. */
#ifndef TESSERA_COMMON_MODEL_FOLDER_SAFETENSORS_H
#define TESSERA_COMMON_MODEL_FOLDER_SAFETENSORS_H

#include <stdint.h>

#include "common/base/span.h"
#include "common/base/status.h"

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

const char *st_dtype_name(st_dtype d);
size_t st_dtype_size(st_dtype d); /* bytes */

enum { ST_MAX_DIMS = 8 };

typedef struct st_tensor {
    const char *name; /* owned by the st_file */
    st_dtype dtype;
    int n_dims; /* 0 = scalar */
    int64_t shape[ST_MAX_DIMS];
    span data; /* inside the mapped file or the caller's block */
} st_tensor;

typedef struct st_meta {
    const char *key, *value;
} st_meta;

typedef struct st_file {
    st_tensor *tensors; /* in the order of their data */
    size_t n_tensors;
    st_meta *meta;
    size_t n_meta;
    /* private */
    void *map; /* NULL if the block is the caller's */
    size_t map_size;
    void *header;      /* the JSON, owner of all texts */
    uint32_t *by_name; /* [n_tensors], places in tensors */
} st_file;

/* Maps the file read-only; tensors point into the map until st_close. */
WARN_UNUSED status st_open(const char *path, st_file *out);
/* Reads a block in memory; the bytes are borrowed and must outlive out. source names it. */
WARN_UNUSED status st_parse(span block, const char *source, st_file *out);
void st_close(st_file *f);

const st_tensor *st_find(const st_file *f, const char *name); /* NULL if absent */
const char *st_meta_find(const st_file *f, const char *key);  /* NULL if absent */
int64_t st_count(const st_tensor *t);                         /* elements */
/* The whole pages within this part of a mapped file leave the process's memory; they are read again
 * if they are wanted again. For bytes of st_open only: a block in memory would lose them. */
void st_forget(span part);
/* The tensor if present with this dtype and rank and aligned for it, so that its bytes may be read
 * in place, else a failure that names what is wrong. n_dims -1: any rank. */
WARN_UNUSED status st_want(const st_file *f, const char *name, st_dtype dtype, int n_dims,
                           const char *source, const st_tensor **out);

/* Header (8-byte length and JSON, padded to 8) for these tensors laid out in the given order;
 * st_tensor.data.data is ignored, sizes count and must agree with shape and dtype. Every tensor
 * must fall on a multiple of its dtype's size, so give larger dtypes first. ST_INTERNAL otherwise.
 * Heap; the caller frees. */
WARN_UNUSED status st_header(const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                             size_t n_meta, uint8_t **out, size_t *out_size);
/* Header and data in one heap block. */
WARN_UNUSED status st_pack(const st_tensor *tensors, size_t n_tensors, const st_meta *meta,
                           size_t n_meta, uint8_t **out, size_t *out_size);
/* Writes path.tmp, fsync, rename, fsync of the folder: a reader never sees half a file. */
WARN_UNUSED status st_write(const char *path, const st_tensor *tensors, size_t n_tensors,
                            const st_meta *meta, size_t n_meta);

#endif
