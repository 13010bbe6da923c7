/* SPDX-License-Identifier: Apache-2.0 */
/* train_state.c: the tensors of a rank's file (state_list.h), and writing it. */
#include "trainer/checkpoint/state/train_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/words.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/state/state_list.h"
#include "trainer/ops/state_codes.h"

const char *const state_prefix[STATE_ARRAYS] = {"value", "moment1", "moment2", "scale1", "scale2"};
const char STATE_MASTER[] = "master";

void train_state_name(state_writer writer, char out[64])
{
    snprintf(out, 64, "rank-%05d-of-%05d.safetensors", writer.rank, writer.ranks);
}

status state_file_path(char path[STATUS_PATH_MAX], const char *folder, state_writer writer)
{
    char name[64];
    train_state_name(writer, name);
    return hf_path(path, folder, name);
}

/* A frozen parameter has the copy that is computed with and no other. */
static void *array_of(const param *weight, int which)
{
    void *const of[STATE_ARRAYS] = {weight->value ? weight->value : weight->own_act,
                                    weight->moment1, weight->moment2, weight->scale1,
                                    weight->scale2};
    return of[which];
}

bool state_is_scale(int which)
{
    return which >= 3;
}

/* Elements of an array of a row: a scale has a block's codes. */
static int64_t count_of(const param *weight, int which)
{
    return state_is_scale(which) ? (weight->own_n + STATE_BLOCK - 1) / STATE_BLOCK : weight->own_n;
}

static st_dtype dtype_of(const param *weight, int which)
{
    return state_is_scale(which) ? DT_F32
           : which > 0           ? weight->moment_dtype
           : weight->value       ? weight->value_dtype
                                 : weight->act_dtype;
}

void state_list_done(state_list *states)
{
    free(states->tensor);
    free(states->array);
    free(states->name);
    free(states->of);
    free(states->which);
    *states = (state_list){0};
}

/* Adds an array of a row if its elements have this size. */
static void list_add(state_list *list, const param *entry, int which, size_t size)
{
    const st_dtype dtype = dtype_of(entry, which);
    const size_t at = list->count;
    if (!array_of(entry, which) || entry->own_n == 0 || st_dtype_size(dtype) != size)
        return;
    if (list->writing && param_in_base(entry))
        return;
    snprintf(list->name[at], STATE_NAME, "%s/%s", state_prefix[which], entry->name);
    list->array[at] = array_of(entry, which);
    list->of[at] = entry;
    list->which[at] = which;
    list->tensor[at] = (st_tensor){.name = list->name[at],
                                   .dtype = dtype,
                                   .n_dims = 1,
                                   .shape = {count_of(entry, which)},
                                   .data = {.size = (size_t)count_of(entry, which) * size}};
    list->count++;
}

/* Larger elements come first in a file, so that all are aligned. */
status state_list_make(const params *registry, bool writing, state_list *out)
{
    size_t most = (size_t)(registry->count * STATE_ARRAYS);
    *out = (state_list){.writing = writing,
                        .tensor = calloc(most, sizeof *out->tensor),
                        .array = calloc(most, sizeof *out->array),
                        .name = calloc(most, sizeof *out->name),
                        .of = calloc(most, sizeof *out->of),
                        .which = calloc(most, sizeof *out->which)};
    if (!out->tensor || !out->array || !out->name || !out->of || !out->which) {
        state_list_done(out);
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu tensors", most);
    }
    for (size_t size = STATE_LARGEST; size > 0; size /= 2)
        for (int which = 0; which < STATE_ARRAYS; which++)
            for (int64_t i = 0; i < registry->count; i++)
                list_add(out, &registry->list[i], which, size);
    return ST_OK;
}

void state_slice_print(const state_slice *part, char out[STATE_SLICE_TEXT])
{
    const int64_t *const list[] = {part->held.size, part->held.first, part->held.count};
    size_t count = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int j = 0; j < SLICE_AXES; j++)
            count = words_add(out, STATE_SLICE_TEXT, count, "%lld ", (long long)list[i][j]);
    words_add(out, STATE_SLICE_TEXT, count, "%lld", (long long)part->first);
}

bool state_slice_read(const char *text, state_slice *out)
{
    int64_t *const list[] = {out->held.size, out->held.first, out->held.count};
    for (size_t i = 0; i < sizeof list / sizeof *list * SLICE_AXES + 1; i++) {
        char *end;
        int64_t *to = i == 3 * SLICE_AXES ? &out->first : &list[i / SLICE_AXES][i % SLICE_AXES];
        *to = strtoll(text, &end, 10);
        if (end == text || *to < 0)
            return false;
        text = end;
    }
    int64_t elements = 1;
    for (int j = 0; j < SLICE_AXES; j++)
        if (out->held.count[j] < 1 || out->held.first[j] > out->held.size[j] - out->held.count[j] ||
            __builtin_mul_overflow(elements, out->held.size[j], &elements))
            return false;
    return !*text;
}

/* ---- writing ---- */

static status write_block(FILE *out_file, const char *path, const void *data, size_t size)
{
    if (size && fwrite(data, 1, size, out_file) != size)
        return FAIL_IN(ST_IO, path, "the file cannot be written: %s", strerror(errno));
    return ST_OK;
}

static status put_arrays(FILE *file, const char *path, const state_list *list, stream *queue,
                         void *chunk)
{
    const backend_vtable *backend = queue->dev->backend;
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
