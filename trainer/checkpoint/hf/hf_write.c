/* SPDX-License-Identifier: Apache-2.0 */
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

static const st_meta meta = {"format", "pt"}; /* transformers refuses a file without it */

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
