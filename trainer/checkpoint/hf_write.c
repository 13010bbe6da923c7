/* hf_write.c: see hf_write.h. Values are read from the device in chunks, merged with their adapters
 * (lora_read_merged), converted to the file's dtype and appended. */
#include "trainer/checkpoint/hf_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/model/convert.h"
#include "trainer/model/lora_params.h"

enum { CHUNK = 1 << 18 /* values moved at once */ };

status hf_path(char out[STATUS_PATH_MAX], const char *folder, const char *name)
{
    if (snprintf(out, STATUS_PATH_MAX, "%s/%s", folder, name) >= STATUS_PATH_MAX)
        return FAIL_IN(ST_CONFIG, folder,
                       "a path in this folder is longer than %d bytes; name a folder with a "
                       "shorter path",
                       STATUS_PATH_MAX - 1);
    return ST_OK;
}

/* A file that appears under its name only when it is whole. */
typedef struct output {
    char path[STATUS_PATH_MAX], temp[STATUS_PATH_MAX];
    const char *folder;
    FILE *file;
} output;

static status output_open(output *o, const char *folder, const char *name)
{
    char temp[300];
    snprintf(temp, sizeof temp, "%.250s.tmp", name);
    o->folder = folder;
    TRY(hf_path(o->path, folder, name));
    TRY(hf_path(o->temp, folder, temp));
    o->file = fopen(o->temp, "wb");
    if (!o->file)
        return FAIL_IN(ST_CANT_CREATE, o->temp, "%s", strerror(errno));
    return ST_OK;
}

static status output_put(output *o, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, 1, size, o->file) != size)
        return FAIL_IN(ST_IO, o->temp, "%s", strerror(errno));
    return ST_OK;
}

/* Syncs and renames the file; if writing it has failed (st), removes it instead. */
static status output_close(output *o, status st)
{
    if (st == ST_OK && (fflush(o->file) != 0 || fsync(fileno(o->file)) != 0))
        st = FAIL_IN(ST_IO, o->temp, "%s", strerror(errno));
    if (fclose(o->file) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, o->temp, "%s", strerror(errno));
    if (st == ST_OK && rename(o->temp, o->path) != 0)
        st = FAIL_IN(ST_IO, o->path, "rename: %s", strerror(errno));
    if (st != ST_OK) {
        unlink(o->temp);
        return st;
    }
    return file_sync_folder(o->folder);
}

status hf_write_text(const char *folder, const char *name, const char *text, size_t size)
{
    output o;
    TRY(output_open(&o, folder, name));
    return output_close(&o, output_put(&o, text, size));
}

static status copy_bytes(output *o, FILE *from, const char *path)
{
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, from)) > 0)
        TRY(output_put(o, chunk, n));
    return ferror(from) ? FAIL_IN(ST_IO, path, "%s", strerror(errno)) : ST_OK;
}

status hf_copy_file(const char *from_folder, const char *folder, const char *name)
{
    char from[STATUS_PATH_MAX], to[STATUS_PATH_MAX];
    struct stat a, b;
    TRY(hf_path(from, from_folder, name));
    TRY(hf_path(to, folder, name));
    if (stat(from, &a) != 0 || !S_ISREG(a.st_mode))
        return ST_OK;
    if (stat(to, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return ST_OK;
    FILE *file = fopen(from, "rb");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, from, "%s", strerror(errno));
    output out;
    status st = output_open(&out, folder, name);
    if (st == ST_OK)
        st = output_close(&out, copy_bytes(&out, file, from));
    fclose(file);
    return st;
}

/* Reads n values of a piece from element `first` on. A piece of one expert consists of columns of
 * its matrix, which is read whole when its first value is asked for. */
static status read_piece(const param_piece *piece, stream *s, int64_t first, int64_t n, double *to,
                         double *matrix)
{
    const param *p = piece->weight;
    if (piece->expert < 0)
        return lora_read_merged(p, s, first, n, to);
    int64_t in = p->shape[1], out = p->shape[2];
    if (first == 0)
        TRY(lora_read_merged(p, s, piece->expert * in * out, in * out, matrix));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (first + i) / in, column = (first + i) % in;
        to[i] = matrix[column * out + piece->column + row];
    }
    return ST_OK;
}

typedef struct buffers {
    double *values; /* [CHUNK] */
    void *bytes;    /* [CHUNK] in the file's dtype */
    double *matrix; /* [in, out] of one expert */
} buffers;

static status put_piece(output *out, const param_piece *piece, st_dtype dtype, stream *s, buffers b)
{
    if (piece->exchanged) { /* all columns of each expert in turn */
        param_piece one = {.weight = piece->weight, .count = piece->shape[1] * piece->shape[2]};
        for (one.expert = 0; one.expert < piece->shape[0]; one.expert++)
            TRY(put_piece(out, &one, dtype, s, b));
        return ST_OK;
    }
    for (int64_t at = 0; at < piece->count; at += CHUNK) {
        int64_t n = piece->count - at < CHUNK ? piece->count - at : CHUNK;
        TRY(read_piece(piece, s, at, n, b.values, b.matrix));
        convert_from_double(b.bytes, dtype, b.values, n);
        TRY(output_put(out, b.bytes, (size_t)n * st_dtype_size(dtype)));
    }
    return ST_OK;
}

static const st_meta meta = {"format", "pt"}; /* transformers refuses a file without it */

status hf_header(const hf_item *items, int64_t n, uint8_t **out, size_t *out_size)
{
    st_tensor *list = calloc((size_t)(n > 0 ? n : 1), sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const param_piece *piece = &items[i].piece;
        list[i] =
            (st_tensor){.name = piece->name, .dtype = items[i].dtype, .n_dims = piece->n_dims};
        memcpy(list[i].shape, piece->shape, (size_t)piece->n_dims * sizeof(int64_t));
        list[i].data.size = (size_t)piece->count * st_dtype_size(items[i].dtype);
    }
    status st = st_header(list, (size_t)n, &meta, 1, out, out_size);
    free(list);
    return st;
}

status hf_write_items(const char *folder, const char *name, const hf_item *items, int64_t n,
                      stream *s)
{
    int64_t largest = 1;
    for (int64_t i = 0; i < n; i++) {
        const param *p = items[i].piece.weight;
        if (p->group == GROUP_EXPERTS && p->shape[1] * p->shape[2] > largest)
            largest = p->shape[1] * p->shape[2];
    }
    output out;
    uint8_t *header = NULL;
    size_t header_size = 0;
    TRY(hf_header(items, n, &header, &header_size));
    buffers b = {malloc(CHUNK * sizeof(double)), malloc(CHUNK * sizeof(double)),
                 malloc((size_t)largest * sizeof(double))};
    status st = b.values && b.bytes && b.matrix ? output_open(&out, folder, name)
                                                : FAIL(ST_NO_MEMORY, "no memory to write weights");
    if (st == ST_OK) {
        st = output_put(&out, header, header_size);
        for (int64_t i = 0; i < n && st == ST_OK; i++)
            st = put_piece(&out, &items[i].piece, items[i].dtype, s, b);
        st = output_close(&out, st);
    }
    free(b.matrix);
    free(b.bytes);
    free(b.values);
    free(header);
    return st;
}

static status put_values(output *out, const st_tensor *tensor, int64_t i, hf_values read,
                         void *context)
{
    int64_t n = (int64_t)(tensor->data.size / st_dtype_size(tensor->dtype));
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    void *bytes = malloc(tensor->data.size + 1);
    status st = values && bytes
                    ? read(context, i, values)
                    : FAIL(ST_NO_MEMORY, "no memory to write %lld values", (long long)n);
    if (st == ST_OK) {
        convert_from_double(bytes, tensor->dtype, values, n);
        st = output_put(out, bytes, tensor->data.size);
    }
    free(values);
    free(bytes);
    return st;
}

status hf_write_values(const char *folder, const char *name, const st_tensor *list, int64_t n,
                       hf_values read, void *context)
{
    output o;
    uint8_t *header = NULL;
    size_t header_size = 0;
    TRY(st_header(list, (size_t)n, &meta, 1, &header, &header_size));
    status st = output_open(&o, folder, name);
    if (st == ST_OK) {
        st = output_put(&o, header, header_size);
        for (int64_t i = 0; i < n && st == ST_OK; i++)
            st = put_values(&o, &list[i], i, read, context);
        st = output_close(&o, st);
    }
    free(header);
    return st;
}
