/* hf_write.c: see hf_write.h. Values are read from the device in chunks, merged with their adapters
 * (lora_read_merged), converted to the file's dtype and appended. */
#include "trainer/checkpoint/hf/hf_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/lora_params.h"

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

static status output_open(output *writer, const char *folder, const char *name)
{
    char temp[300];
    snprintf(temp, sizeof temp, "%.250s.tmp", name);
    writer->folder = folder;
    TRY(hf_path(writer->path, folder, name));
    TRY(hf_path(writer->temp, folder, temp));
    writer->file = fopen(writer->temp, "wb");
    if (!writer->file)
        return FAIL_IN(ST_CANT_CREATE, writer->temp, "%s", strerror(errno));
    return ST_OK;
}

static status output_put(output *writer, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, 1, size, writer->file) != size)
        return FAIL_IN(ST_IO, writer->temp, "%s", strerror(errno));
    return ST_OK;
}

/* Syncs and renames the file; if writing it has failed (st), removes it instead. */
static status output_close(output *writer, status st)
{
    if (st == ST_OK && (fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0))
        st = FAIL_IN(ST_IO, writer->temp, "%s", strerror(errno));
    if (fclose(writer->file) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, writer->temp, "%s", strerror(errno));
    if (st == ST_OK && rename(writer->temp, writer->path) != 0)
        st = FAIL_IN(ST_IO, writer->path, "rename: %s", strerror(errno));
    if (st != ST_OK) {
        unlink(writer->temp);
        return st;
    }
    return file_sync_folder(writer->folder);
}

status hf_write_text(const char *folder, const char *name, const char *text, size_t size)
{
    output writer;
    TRY(output_open(&writer, folder, name));
    return output_close(&writer, output_put(&writer, text, size));
}

static status copy_bytes(output *writer, FILE *from, const char *path)
{
    char chunk[1 << 16];
    ssize_t count;
    while ((count = file_read_at(fileno(from), chunk, sizeof chunk, -1)) > 0)
        TRY(output_put(writer, chunk, (size_t)count));
    return count < 0 ? FAIL_IN(ST_IO, path, "%s", strerror(errno)) : ST_OK;
}

status hf_copy_file(const char *from_folder, const char *folder, const char *name)
{
    char from[STATUS_PATH_MAX], to[STATUS_PATH_MAX];
    struct stat first, second;
    TRY(hf_path(from, from_folder, name));
    TRY(hf_path(to, folder, name));
    if (stat(from, &first) != 0 || !S_ISREG(first.st_mode))
        return ST_OK;
    if (stat(to, &second) == 0 && first.st_dev == second.st_dev && first.st_ino == second.st_ino)
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

/* Reads values of a matrix with its adapter merged in, or only what the adapter adds. */
static status read_values(const param *weight, bool added_only, stream *queue, int64_t first,
                          int64_t count, double *to)
{
    if (!added_only)
        return lora_read_merged(weight, queue, first, count, to);
    memset(to, 0, (size_t)count * sizeof *to);
    return lora_merge(weight, queue, first, count, to);
}

/* The same for `count` values of a piece from element `first` on. A piece of one expert consists of
 * columns of its matrix, which is read whole when its first value is asked for. */
static status read_piece(const param_piece *piece, bool added_only, stream *queue, int64_t first,
                         int64_t count, double *to, double *matrix)
{
    const param *weight = piece->weight;
    if (piece->expert < 0)
        return read_values(weight, added_only, queue, first, count, to);
    int64_t in = weight->shape[1], out = weight->shape[2];
    if (first == 0)
        TRY(read_values(weight, added_only, queue, piece->expert * in * out, in * out, matrix));
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / in, column = (first + i) % in;
        to[i] = matrix[column * out + piece->column + row];
    }
    return ST_OK;
}

void hf_add_values(const uint8_t *bytes, st_dtype dtype, int64_t count, double *inout, double *room)
{
    convert_to_double(room, bytes, dtype, count);
    for (int64_t i = 0; i < count; i++)
        inout[i] += room[i];
}

typedef struct buffers {
    double *values; /* [CHUNK] */
    double *source; /* [CHUNK] */
    void *bytes;    /* [CHUNK] in the file's dtype */
    double *matrix; /* [in, out] of one expert */
} buffers;

/* source: the piece's bytes in the source's file, to which an adapter is added, or NULL. */
static status put_piece(output *out, const param_piece *piece, const uint8_t *source,
                        st_dtype dtype, stream *queue, buffers rooms)
{
    const size_t size = st_dtype_size(dtype);
    if (piece->exchanged) { /* all columns of each expert in turn */
        param_piece one = {.weight = piece->weight, .count = piece->shape[1] * piece->shape[2]};
        for (one.expert = 0; one.expert < piece->shape[0]; one.expert++)
            TRY(put_piece(out, &one,
                          source ? source + (size_t)(one.expert * one.count) * size : NULL, dtype,
                          queue, rooms));
        return ST_OK;
    }
    for (int64_t at = 0; at < piece->count; at += CHUNK) {
        int64_t count = piece->count - at < CHUNK ? piece->count - at : CHUNK;
        TRY(read_piece(piece, source != NULL, queue, at, count, rooms.values, rooms.matrix));
        if (source)
            hf_add_values(source + (size_t)at * size, dtype, count, rooms.values, rooms.source);
        convert_from_double(rooms.bytes, dtype, rooms.values, count);
        TRY(output_put(out, rooms.bytes, (size_t)count * size));
    }
    return ST_OK;
}

static status put_item(output *out, const hf_item *item, stream *queue, buffers rooms)
{
    const size_t bytes = (size_t)item->piece.count * st_dtype_size(item->dtype);
    const status st = item->source && !item->piece.weight->lora
                          ? output_put(out, item->source, bytes)
                          : put_piece(out, &item->piece, item->source, item->dtype, queue, rooms);
    if (item->source)
        st_forget(span_of(item->source, bytes)); /* a base may be larger than memory */
    return st;
}

static const st_meta meta = {"format", "pt"}; /* transformers refuses a file without it */

status hf_header(const hf_item *items, int64_t count, uint8_t **out, size_t *out_size)
{
    st_tensor *list = calloc((size_t)(count > 0 ? count : 1), sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const param_piece *piece = &items[i].piece;
        list[i] =
            (st_tensor){.name = piece->name, .dtype = items[i].dtype, .n_dims = piece->n_dims};
        memcpy(list[i].shape, piece->shape, (size_t)piece->n_dims * sizeof(int64_t));
        list[i].data.size = (size_t)piece->count * st_dtype_size(items[i].dtype);
    }
    status st = st_header(list, (size_t)count, &meta, 1, out, out_size);
    free(list);
    return st;
}

status hf_write_items(const char *folder, const char *name, const hf_item *items, int64_t count,
                      stream *queue)
{
    int64_t largest = 1;
    for (int64_t i = 0; i < count; i++) {
        const param *weight = items[i].piece.weight;
        if (weight->group == GROUP_EXPERTS && weight->shape[1] * weight->shape[2] > largest)
            largest = weight->shape[1] * weight->shape[2];
    }
    output out;
    uint8_t *header = NULL;
    size_t header_size = 0;
    TRY(hf_header(items, count, &header, &header_size));
    buffers rooms = {malloc(CHUNK * sizeof(double)), malloc(CHUNK * sizeof(double)),
                     malloc(CHUNK * sizeof(double)), malloc((size_t)largest * sizeof(double))};
    status st = rooms.values && rooms.source && rooms.bytes && rooms.matrix
                    ? output_open(&out, folder, name)
                    : FAIL(ST_NO_MEMORY, "no memory to write weights");
    if (st == ST_OK) {
        st = output_put(&out, header, header_size);
        for (int64_t i = 0; i < count && st == ST_OK; i++)
            st = put_item(&out, &items[i], queue, rooms);
        st = output_close(&out, st);
    }
    free(rooms.matrix);
    free(rooms.bytes);
    free(rooms.source);
    free(rooms.values);
    free(header);
    return st;
}

static status put_values(output *out, const st_tensor *tensor, int64_t number, hf_reader read,
                         void *context)
{
    int64_t count = (int64_t)(tensor->data.size / st_dtype_size(tensor->dtype));
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    void *bytes = malloc(tensor->data.size + 1);
    status st = values && bytes
                    ? read(context, number, values)
                    : FAIL(ST_NO_MEMORY, "no memory to write %lld values", (long long)count);
    if (st == ST_OK) {
        convert_from_double(bytes, tensor->dtype, values, count);
        st = output_put(out, bytes, tensor->data.size);
    }
    free(values);
    free(bytes);
    return st;
}

status hf_write_values(const char *folder, const char *name, const st_tensor *list, int64_t count,
                       hf_reader read, void *context)
{
    output writer;
    uint8_t *header = NULL;
    size_t header_size = 0;
    TRY(st_header(list, (size_t)count, &meta, 1, &header, &header_size));
    status st = output_open(&writer, folder, name);
    if (st == ST_OK) {
        st = output_put(&writer, header, header_size);
        for (int64_t i = 0; i < count && st == ST_OK; i++)
            st = put_values(&writer, &list[i], i, read, context);
        st = output_close(&writer, st);
    }
    free(header);
    return st;
}
