/* train_state_write.c: writing the files of train_state.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/checkpoint/state_list.h"
#include "trainer/checkpoint/train_state.h"

static status write_block(FILE *out_file, const char *path, const void *data, size_t size)
{
    if (size && fwrite(data, 1, size, out_file) != size)
        return FAIL_IN(ST_IO, path, "the file cannot be written: %s", strerror(errno));
    return ST_OK;
}

/* Leaves a hole in the file for the values of a device without storage. */
static status put_hole(FILE *out_file, const char *path, const state_list *states)
{
    off_t end = ftello(out_file);
    for (size_t i = 0; i < states->count; i++)
        end += (off_t)states->tensor[i].data.size;
    if (fflush(out_file) != 0 || ftruncate(fileno(out_file), end) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}

static status put_arrays(FILE *file, const char *path, const state_list *list, stream *queue,
                         void *chunk)
{
    const backend_vtable *backend = queue->dev->backend;
    if (!device_has_storage(queue->dev))
        return put_hole(file, path, list);
    for (size_t i = 0; i < list->count; i++)
        for (size_t at = 0, size = list->tensor[i].data.size; at < size; at += STATE_CHUNK) {
            size_t count = size - at < STATE_CHUNK ? size - at : STATE_CHUNK;
            TRY(backend->to_host(queue, chunk, (const char *)list->array[i] + at, count));
            TRY(backend->wait(queue));
            TRY(write_block(file, path, chunk, count));
        }
    return ST_OK;
}

/* *out [*out_n]: an entry "slice/NAME" for every tensor but scales, whose slices are those of their
 * moments, if `sliced`; and one that says that master values are in BF16, if `rounded`. In one
 * block of heap memory with the texts after the list. */
static status list_meta(const state_list *states, bool sliced, bool rounded, st_meta **out,
                        size_t *out_n)
{
    size_t count = 0;
    char(*text)[STATE_SLICE_TEXT];
    st_meta *list = calloc(states->count + 2, sizeof *list + sizeof *text + STATE_NAME);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu slices", states->count);
    text = (char(*)[STATE_SLICE_TEXT])(list + states->count + 2);
    char(*key)[STATE_NAME] = (char(*)[STATE_NAME])(text + states->count + 1);
    for (size_t i = 0; i < states->count && sliced; i++) {
        if (state_is_scale(states->which[i]))
            continue;
        state_slice part = {states->of[i]->held, states->of[i]->own_first};
        snprintf(key[i], sizeof key[i], "slice/%s", states->name[i]);
        state_slice_print(&part, text[i]);
        list[count++] = (st_meta){key[i], text[i]};
    }
    if (rounded)
        list[count++] = (st_meta){STATE_MASTER, "BF16"};
    *out = list;
    *out_n = count;
    return ST_OK;
}

status train_state_write(const params *registry, stream *queue, state_writer writer,
                         const char *folder)
{
    char path[STATUS_PATH_MAX];
    state_list list = {0};
    st_meta *slices = NULL;
    uint8_t *header = NULL;
    size_t header_size, entries = 0;
    FILE *file = NULL;
    status st;
    TRY(params_may_be_kept(registry));
    void *chunk = malloc(STATE_CHUNK);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to write a checkpoint");
    TRY_OR(done, state_file_path(path, folder, writer));
    TRY_OR(done, state_list_make(registry, true, &list));
    TRY_OR(done, list_meta(&list, writer.ranks > 1, registry->act_masters, &slices, &entries));
    TRY_OR(done, st_header(list.tensor, list.count, entries ? slices : NULL, entries, &header,
                           &header_size));
    file =
        fopen(path, "wbe"); /* under its own name: the folder is renamed when all of it is whole */
    if (!file) {
        st = FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
        goto done;
    }
    TRY_OR(done, write_block(file, path, header, header_size));
    TRY_OR(done, put_arrays(file, path, &list, queue, chunk));
    if (fflush(file) != 0 || fsync(fileno(file)) != 0)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
done:
    if (file && fclose(file) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    free(header);
    free(slices);
    state_list_done(&list);
    free(chunk);
    return st;
}
