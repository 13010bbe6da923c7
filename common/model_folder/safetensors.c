/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c: reads safetensors. Nothing in the header is used before it is checked. */
#include "common/model_folder/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json/json.h"

enum { LENGTH_BYTES = 8, HEADER_MAX = 100000000 }; /* HEADER_MAX is the published library's limit */
#define META_KEY "__metadata__"

const char *st_dtype_name(st_dtype dtype)
{
    static const char *const names[] = {
#define NAME(name, text, size) text,
        ST_DTYPES(NAME)
#undef NAME
    };
    return dtype < DT_COUNT ? names[dtype] : "unknown";
}

size_t st_dtype_size(st_dtype dtype)
{
    static const uint8_t sizes[] = {
#define SIZE(name, text, size) size,
        ST_DTYPES(SIZE)
#undef SIZE
    };
    return dtype < DT_COUNT ? sizes[dtype] : 0;
}

int64_t st_count(const st_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        count *= tensor->shape[i];
    return count;
}

static status read_dtype(const json_value *entry, const char *name, const char *source,
                         st_dtype *out)
{
    const char *text = json_text(json_find(entry, "dtype"), NULL);
    if (!text)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" has no dtype", name);
    for (int i = 0; i < DT_COUNT; i++)
        if (strcmp(text, st_dtype_name((st_dtype)i)) == 0) {
            *out = (st_dtype)i;
            return ST_OK;
        }
    return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": dtype \"%.40s\" is not supported", name,
                   text);
}

/* Reads the shape and computes the bytes that a tensor of it has. */
static status read_shape(const json_value *entry, const char *name, const char *source,
                         st_tensor *tensor, uint64_t *out_bytes)
{
    const json_value *shape = json_find(entry, "shape");
    if (!shape || json_typeof(shape) != JSON_ARRAY || json_count(shape) > ST_MAX_DIMS)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\": expected a shape of at most %d dimensions", name,
                       ST_MAX_DIMS);
    uint64_t bytes = st_dtype_size(tensor->dtype);
    bool overflow = false;
    tensor->n_dims = (int)json_count(shape);
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_value *size = json_item(shape, (size_t)i);
        tensor->shape[i] = json_int(size, -1);
        if (tensor->shape[i] < 0)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "tensor \"%s\": dimension %d of its shape must be a whole number of at least 0",
                name, i);
        /* A zero in the shape would hide an overflow of the other factors, in which st_count would
         * then run. So it counts as 1 here. */
        uint64_t factor = tensor->shape[i] ? (uint64_t)tensor->shape[i] : 1;
        overflow |= __builtin_mul_overflow(bytes, factor, &bytes) || bytes > INT64_MAX;
    }
    if (overflow)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": the product of its shape overflows",
                       name);
    *out_bytes = st_count(tensor) == 0 ? 0 : bytes;
    return ST_OK;
}

static status read_entry(const json_value *entry, const char *name, const char *source, span data,
                         st_tensor *tensor)
{
    uint64_t bytes;
    if (json_typeof(entry) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": expected an object, found %s", name,
                       json_type_name(json_typeof(entry)));
    tensor->name = name;
    TRY(read_dtype(entry, name, source, &tensor->dtype));
    TRY(read_shape(entry, name, source, tensor, &bytes));
    const json_value *offsets = json_find(entry, "data_offsets");
    int64_t begin = json_int(json_item(offsets, 0), -1), end = json_int(json_item(offsets, 1), -1);
    if (json_count(offsets) != 2 || begin < 0 || end < begin)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "tensor \"%s\": data_offsets must be two whole numbers, the second not below the "
            "first",
            name);
    if ((uint64_t)(end - begin) != bytes)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\": its shape and dtype need %llu bytes, its offsets hold %lld",
                       name, (unsigned long long)bytes, (long long)(end - begin));
    if (!span_holds(data, (uint64_t)begin, bytes))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "tensor \"%s\" ends at data byte %lld, but there are only %zu bytes of data; the "
            "file may be truncated",
            name, (long long)end, data.size);
    tensor->data = span_of(data.data + begin, bytes);
    return ST_OK;
}

static status read_meta(const json_value *meta, const char *source, st_file *file)
{
    if (json_typeof(meta) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, META_KEY ": expected an object, found %s",
                       json_type_name(json_typeof(meta)));
    file->meta = (st_meta *)calloc(json_count(meta) + 1, sizeof *file->meta);
    if (!file->meta)
        return FAIL(ST_NO_MEMORY, "no memory for %zu metadata entries", json_count(meta));
    for (size_t i = 0; i < json_count(meta); i++) {
        const json_value *value = json_member(meta, i, &file->meta[i].key);
        file->meta[i].value = json_text(value, NULL);
        if (!file->meta[i].value)
            return FAIL_IN(ST_BAD_INPUT, source, META_KEY ": \"%s\": expected a text, found %s",
                           file->meta[i].key, json_type_name(json_typeof(value)));
        file->n_meta++;
    }
    return ST_OK;
}

static int by_place(const void *one, const void *other)
{
    const st_tensor *first = (const st_tensor *)one, *second = (const st_tensor *)other;
    if (first->data.data != second->data.data)
        return first->data.data < second->data.data ? -1 : 1;
    if (first->data.size !=
        second->data.size) /* empty tensors first, so that they do not seem to overlap */
        return first->data.size < second->data.size ? -1 : 1;
    return strcmp(first->name, second->name);
}

/* Checks that the tensors, which are in the order of their data, cover the data exactly. */
static status check_cover(const st_file *file, const char *source, span data)
{
    const uint8_t *at = data.data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const st_tensor *tensor = &file->tensors[i];
        if (tensor->data.data < at)
            return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" overlaps \"%s\"", tensor->name,
                           file->tensors[i - 1].name);
        if (tensor->data.data > at)
            return FAIL_IN(ST_BAD_INPUT, source, "there are %zu unused bytes before tensor \"%s\"",
                           (size_t)(tensor->data.data - at), tensor->name);
        at += tensor->data.size;
    }
    size_t left = (size_t)(data.data + data.size - at);
    if (left)
        return FAIL_IN(ST_BAD_INPUT, source, "there are %zu bytes after the last tensor (\"%s\")",
                       left, file->n_tensors ? file->tensors[file->n_tensors - 1].name : "none");
    return ST_OK;
}

static int compare_names(const void *one, const void *other, void *user)
{
    const st_tensor *tensors = (const st_tensor *)user;
    return strcmp(tensors[*(const uint32_t *)one].name, tensors[*(const uint32_t *)other].name);
}

static status read_tensors(const json_value *header, const char *source, span data, st_file *file)
{
    size_t count = json_count(header);
    file->tensors = (st_tensor *)calloc(count + 1, sizeof *file->tensors);
    file->by_name = (uint32_t *)calloc(count + 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return FAIL(ST_NO_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        const char *name = NULL;
        const json_value *entry = json_member(header, i, &name);
        if (strcmp(name, META_KEY) == 0)
            TRY(read_meta(entry, source, file));
        else
            TRY(read_entry(entry, name, source, data, &file->tensors[file->n_tensors++]));
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->n_tensors; i++)
        file->by_name[i] = (uint32_t)i;
    qsort_r(file->by_name, file->n_tensors, sizeof *file->by_name, compare_names, file->tensors);
    return check_cover(file, source, data);
}

/* Whether a text in the JSON contains a NUL character. It is refused because names and metadata are
 * given out as C strings. Only \u0000 with an even number of backslashes before it is an escape; in
 * "\\u0000", which occurs in JSON inside of a metadata text, the backslash itself is escaped. */
static bool holds_nul(const char *text, size_t size)
{
    static const char nul[] = "\\u0000";
    const char *end = text + size, *at = text;
    while ((at = memmem(at, (size_t)(end - at), nul, sizeof nul - 1))) {
        const char *first = at;
        while (first > text && first[-1] == '\\')
            first--;
        if ((at - first) % 2 == 0)
            return true;
        at += sizeof nul - 1;
    }
    return false;
}

static status parse_block(span block, const char *source, st_file *file)
{
    if (block.size < LENGTH_BYTES)
        return FAIL_AT(
            ST_BAD_INPUT, source, -1, (int64_t)block.size,
            "not safetensors: the file has %zu bytes, fewer than the 8 of the header's length",
            block.size);
    uint64_t length = load_u64(block.data);
    if (length > HEADER_MAX || !span_holds(block, LENGTH_BYTES, length))
        return FAIL_AT(
            ST_BAD_INPUT, source, -1, 0,
            "not safetensors, or truncated: a header of %llu bytes in a file of %zu bytes "
            "(at most %d are allowed)",
            (unsigned long long)length, block.size, HEADER_MAX);
    const char *text = (const char *)block.data + LENGTH_BYTES;
    if (length == 0 || text[0] != '{')
        return FAIL_AT(ST_BAD_INPUT, source, -1, LENGTH_BYTES,
                       "not safetensors: the header must begin with {");
    if (holds_nul(text, length))
        return FAIL_IN(ST_BAD_INPUT, source, "the header contains a NUL character");
    json_value *header = NULL;
    TRY(json_parse(text, length, source, &header));
    file->header = header;
    size_t start = LENGTH_BYTES + (size_t)length;
    return read_tensors(header, source, span_of(block.data + start, block.size - start), file);
}

status st_parse(span block, const char *source, st_file *out)
{
    st_file file;
    memset(&file, 0, sizeof file);
    status st = parse_block(block, source, &file);
    if (st == ST_OK)
        *out = file;
    else
        st_close(&file);
    return st;
}

static status map_file(int fd, const char *path, st_file *file)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return FAIL_IN(ST_IO, path, "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return FAIL_IN(ST_BAD_INPUT, path, "expected a file");
    if (info.st_size == 0)
        return FAIL_IN(ST_BAD_INPUT, path, "not safetensors: the file is empty");
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return FAIL_IN(ST_IO, path, "cannot be mapped: %s", strerror(errno));
    file->map = map;
    file->map_size = (size_t)info.st_size;
    return ST_OK;
}

status st_open(const char *path, st_file *out)
{
    st_file file;
    memset(&file, 0, sizeof file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    status st = map_file(fd, path, &file);
    close(fd);
    if (st == ST_OK)
        st = parse_block(span_of(file.map, file.map_size), path, &file);
    if (st == ST_OK)
        *out = file;
    else
        st_close(&file);
    return st;
}

void st_close(st_file *file)
{
    if (!file)
        return;
    json_value *header = (json_value *)file->header;
    json_free(&header);
    free(file->tensors);
    free(file->by_name);
    free(file->meta);
    if (file->map)
        munmap(file->map, file->map_size);
    memset(file, 0, sizeof *file);
}

void st_forget(span part)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)part.data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)part.data + part.size) / page * page;
    if (end > first)
        madvise((void *)first, end - first, MADV_DONTNEED); /* a failure only costs memory */
}

const st_tensor *st_find(const st_file *file, const char *name)
{
    size_t low = 0, high = file->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const st_tensor *tensor = &file->tensors[file->by_name[middle]];
        int order = strcmp(name, tensor->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *st_meta_find(const st_file *file, const char *key)
{
    for (size_t i = 0; i < file->n_meta; i++)
        if (strcmp(file->meta[i].key, key) == 0)
            return file->meta[i].value;
    return NULL;
}

status st_want(const st_file *file, const char *name, st_dtype dtype, int n_dims,
               const char *source, const st_tensor **out)
{
    const st_tensor *tensor = st_find(file, name);
    if (!tensor)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" is missing", name);
    if (tensor->dtype != dtype || (n_dims >= 0 && tensor->n_dims != n_dims))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\": expected %s of %d dimensions, found %s of %d", name,
                       st_dtype_name(dtype), n_dims >= 0 ? n_dims : tensor->n_dims,
                       st_dtype_name(tensor->dtype), tensor->n_dims);
    if ((uintptr_t)tensor->data.data % st_dtype_size(dtype) != 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\" does not begin at a multiple of its %zu-byte elements", name,
                       st_dtype_size(dtype));
    *out = tensor;
    return ST_OK;
}
