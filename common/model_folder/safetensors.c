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

const char *st_dtype_name(st_dtype d)
{
    static const char *const names[] = {
#define NAME(name, text, size) text,
        ST_DTYPES(NAME)
#undef NAME
    };
    return d < DT_COUNT ? names[d] : "unknown";
}

size_t st_dtype_size(st_dtype d)
{
    static const uint8_t sizes[] = {
#define SIZE(name, text, size) size,
        ST_DTYPES(SIZE)
#undef SIZE
    };
    return d < DT_COUNT ? sizes[d] : 0;
}

int64_t st_count(const st_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static status read_dtype(const json_value *entry, const char *name, const char *source,
                         st_dtype *out)
{
    const char *text = json_text(json_find(entry, "dtype"), NULL);
    if (!text)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" has no dtype", name);
    for (int d = 0; d < DT_COUNT; d++)
        if (strcmp(text, st_dtype_name((st_dtype)d)) == 0) {
            *out = (st_dtype)d;
            return ST_OK;
        }
    return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": dtype \"%.40s\" is not supported", name,
                   text);
}

/* Reads the shape and computes the bytes that a tensor of it has. */
static status read_shape(const json_value *entry, const char *name, const char *source,
                         st_tensor *t, uint64_t *out_bytes)
{
    const json_value *shape = json_find(entry, "shape");
    if (!shape || json_typeof(shape) != JSON_ARRAY || json_count(shape) > ST_MAX_DIMS)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\": expected a shape of at most %d dimensions", name,
                       ST_MAX_DIMS);
    uint64_t bytes = st_dtype_size(t->dtype);
    bool overflow = false;
    t->n_dims = (int)json_count(shape);
    for (int i = 0; i < t->n_dims; i++) {
        const json_value *size = json_item(shape, (size_t)i);
        t->shape[i] = json_int(size, -1);
        if (t->shape[i] < 0)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "tensor \"%s\": dimension %d of its shape must be a whole number of at least 0",
                name, i);
        /* A zero in the shape would hide an overflow of the other factors, in which st_count would
         * then run. So it counts as 1 here. */
        uint64_t factor = t->shape[i] ? (uint64_t)t->shape[i] : 1;
        overflow |= __builtin_mul_overflow(bytes, factor, &bytes) || bytes > INT64_MAX;
    }
    if (overflow)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": the product of its shape overflows",
                       name);
    *out_bytes = st_count(t) == 0 ? 0 : bytes;
    return ST_OK;
}

static status read_entry(const json_value *entry, const char *name, const char *source, span data,
                         st_tensor *t)
{
    uint64_t bytes;
    if (json_typeof(entry) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\": expected an object, found %s", name,
                       json_type_name(json_typeof(entry)));
    t->name = name;
    TRY(read_dtype(entry, name, source, &t->dtype));
    TRY(read_shape(entry, name, source, t, &bytes));
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
    t->data = span_of(data.data + begin, bytes);
    return ST_OK;
}

static status read_meta(const json_value *meta, const char *source, st_file *f)
{
    if (json_typeof(meta) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, META_KEY ": expected an object, found %s",
                       json_type_name(json_typeof(meta)));
    f->meta = (st_meta *)calloc(json_count(meta) + 1, sizeof *f->meta);
    if (!f->meta)
        return FAIL(ST_NO_MEMORY, "no memory for %zu metadata entries", json_count(meta));
    for (size_t i = 0; i < json_count(meta); i++) {
        const json_value *value = json_member(meta, i, &f->meta[i].key);
        f->meta[i].value = json_text(value, NULL);
        if (!f->meta[i].value)
            return FAIL_IN(ST_BAD_INPUT, source, META_KEY ": \"%s\": expected a text, found %s",
                           f->meta[i].key, json_type_name(json_typeof(value)));
        f->n_meta++;
    }
    return ST_OK;
}

static int by_place(const void *a, const void *b)
{
    const st_tensor *x = (const st_tensor *)a, *y = (const st_tensor *)b;
    if (x->data.data != y->data.data)
        return x->data.data < y->data.data ? -1 : 1;
    if (x->data.size != y->data.size) /* empty tensors first, so that they do not seem to overlap */
        return x->data.size < y->data.size ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks that the tensors, which are in the order of their data, cover the data exactly. */
static status check_cover(const st_file *f, const char *source, span data)
{
    const uint8_t *at = data.data;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        if (t->data.data < at)
            return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" overlaps \"%s\"", t->name,
                           f->tensors[i - 1].name);
        if (t->data.data > at)
            return FAIL_IN(ST_BAD_INPUT, source, "there are %zu unused bytes before tensor \"%s\"",
                           (size_t)(t->data.data - at), t->name);
        at += t->data.size;
    }
    size_t left = (size_t)(data.data + data.size - at);
    if (left)
        return FAIL_IN(ST_BAD_INPUT, source, "there are %zu bytes after the last tensor (\"%s\")",
                       left, f->n_tensors ? f->tensors[f->n_tensors - 1].name : "none");
    return ST_OK;
}

static int compare_names(const void *a, const void *b, void *user)
{
    const st_tensor *tensors = (const st_tensor *)user;
    return strcmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

static status read_tensors(const json_value *header, const char *source, span data, st_file *f)
{
    size_t n = json_count(header);
    f->tensors = (st_tensor *)calloc(n + 1, sizeof *f->tensors);
    f->by_name = (uint32_t *)calloc(n + 1, sizeof *f->by_name);
    if (!f->tensors || !f->by_name)
        return FAIL(ST_NO_MEMORY, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const char *name = NULL;
        const json_value *entry = json_member(header, i, &name);
        if (strcmp(name, META_KEY) == 0)
            TRY(read_meta(entry, source, f));
        else
            TRY(read_entry(entry, name, source, data, &f->tensors[f->n_tensors++]));
    }
    qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_place);
    for (size_t i = 0; i < f->n_tensors; i++)
        f->by_name[i] = (uint32_t)i;
    qsort_r(f->by_name, f->n_tensors, sizeof *f->by_name, compare_names, f->tensors);
    return check_cover(f, source, data);
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

static status parse_block(span block, const char *source, st_file *f)
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
    f->header = header;
    size_t start = LENGTH_BYTES + (size_t)length;
    return read_tensors(header, source, span_of(block.data + start, block.size - start), f);
}

status st_parse(span block, const char *source, st_file *out)
{
    st_file f;
    memset(&f, 0, sizeof f);
    status st = parse_block(block, source, &f);
    if (st == ST_OK)
        *out = f;
    else
        st_close(&f);
    return st;
}

static status map_file(int fd, const char *path, st_file *f)
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
    f->map = map;
    f->map_size = (size_t)info.st_size;
    return ST_OK;
}

status st_open(const char *path, st_file *out)
{
    st_file f;
    memset(&f, 0, sizeof f);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    status st = map_file(fd, path, &f);
    close(fd);
    if (st == ST_OK)
        st = parse_block(span_of(f.map, f.map_size), path, &f);
    if (st == ST_OK)
        *out = f;
    else
        st_close(&f);
    return st;
}

void st_close(st_file *f)
{
    if (!f)
        return;
    json_value *header = (json_value *)f->header;
    json_free(&header);
    free(f->tensors);
    free(f->by_name);
    free(f->meta);
    if (f->map)
        munmap(f->map, f->map_size);
    memset(f, 0, sizeof *f);
}

void st_forget(span part)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)part.data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)part.data + part.size) / page * page;
    if (end > first)
        madvise((void *)first, end - first, MADV_DONTNEED); /* a failure only costs memory */
}

const st_tensor *st_find(const st_file *f, const char *name)
{
    size_t low = 0, high = f->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const st_tensor *t = &f->tensors[f->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0)
            return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *st_meta_find(const st_file *f, const char *key)
{
    for (size_t i = 0; i < f->n_meta; i++)
        if (strcmp(f->meta[i].key, key) == 0)
            return f->meta[i].value;
    return NULL;
}

status st_want(const st_file *f, const char *name, st_dtype dtype, int n_dims, const char *source,
               const st_tensor **out)
{
    const st_tensor *t = st_find(f, name);
    if (!t)
        return FAIL_IN(ST_BAD_INPUT, source, "tensor \"%s\" is missing", name);
    if (t->dtype != dtype || (n_dims >= 0 && t->n_dims != n_dims))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\": expected %s of %d dimensions, found %s of %d", name,
                       st_dtype_name(dtype), n_dims >= 0 ? n_dims : t->n_dims,
                       st_dtype_name(t->dtype), t->n_dims);
    if ((uintptr_t)t->data.data % st_dtype_size(dtype) != 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "tensor \"%s\" does not begin at a multiple of its %zu-byte elements", name,
                       st_dtype_size(dtype));
    *out = t;
    return ST_OK;
}
