/* SPDX-License-Identifier: Apache-2.0 */
/* train_state_load.c: reading the files of train_state.h. They are mapped, and each run of elements
 * that this rank stores is taken from whatever file has it. The layouts of the writers and of the
 * readers need not be the same. */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/checkpoint/state/state_list.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/model/dims/convert.h"
#include "trainer/ops/state_codes.h"

/* ---- elements of a file to their place in device memory ---- */

/* Host memory for values on their way, [STATE_CHUNK] each. */
typedef struct state_room {
    double *values;
    uint8_t *narrow; /* in the type in which they are stored */
    uint8_t *was;    /* what a frozen row had before */
} state_room;

/* Where a row's values go, and what was found of them. */
typedef struct state_target {
    void *to;
    st_dtype dtype;
    int64_t found;
    bool frozen, differs; /* differs: a frozen row had other values before */
    bool second;          /* it is the second moment */
    float *scale;         /* device memory of the scales of codes, else NULL */
    float *numbers;       /* [own_n] on the host, for moments that are converted, else NULL */
} state_target;

/* A file's tensor, and the scales of its codes; NULL: it has numbers. */
typedef struct state_tensor {
    const st_tensor *tensor, *scale;
} state_tensor;

/* Copies `count` elements of a file's tensor from element `at` on to the row's element `to_at`. */
static status put_stored(stream *queue, const st_tensor *tensor, int64_t at, int64_t count,
                         int64_t to_at, const state_room *room, state_target *target)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t size = st_dtype_size(target->dtype), bytes = (size_t)count * size;
    const uint8_t *from = tensor->data.data + at * (int64_t)st_dtype_size(tensor->dtype);
    char *to = (char *)target->to + (size_t)to_at * size;
    if (tensor->dtype != target->dtype) {
        convert_to_double(room->values, from, tensor->dtype, count);
        convert_from_double(room->narrow, target->dtype, room->values, count);
        from = room->narrow;
    }
    if (target->frozen) {
        TRY(backend->to_host(queue, room->was, to, bytes));
        TRY(backend->wait(queue));
        target->differs |= memcmp(room->was, from, bytes) != 0;
    }
    TRY(backend->to_device(queue, to, from, bytes));
    target->found += count;
    return backend->wait(queue);
}

/* put_stored for codes, whose blocks must be the same in the file and here. */
static status put_codes(const param *weight, stream *queue, const state_tensor *of, int64_t at,
                        int64_t count, int64_t to_at, const state_room *room, state_target *target)
{
    const int64_t blocks = (count + STATE_BLOCK - 1) / STATE_BLOCK;
    const bool ends = to_at + count == weight->own_n && at + count == of->tensor->shape[0];
    if (at % STATE_BLOCK || to_at % STATE_BLOCK || (!ends && count % STATE_BLOCK))
        return FAIL(ST_CONFIG,
                    "%s: the moments in this checkpoint have 8 bits, and their blocks of %d do not "
                    "fall together with those of this layout: set checkpoint.convert_states to "
                    "true, or resume with the layout that wrote it",
                    weight->name, STATE_BLOCK);
    TRY(put_stored(queue, of->tensor, at, count, to_at, room, target));
    TRY(queue->dev->backend->to_device(queue, target->scale + to_at / STATE_BLOCK,
                                       of->scale->data.data +
                                           (size_t)(at / STATE_BLOCK) * sizeof(float),
                                       (size_t)blocks * sizeof(float)));
    return queue->dev->backend->wait(queue);
}

/* Keeps the numbers that stored moments stand for. */
static void keep_numbers(const state_tensor *of, int64_t at, int64_t count, int64_t to_at,
                         const state_room *room, state_target *target)
{
    const uint8_t *from = of->tensor->data.data;
    float *to = target->numbers + to_at;
    target->found += count;
    if (!of->scale) {
        convert_to_double(room->values, from + at * (int64_t)st_dtype_size(of->tensor->dtype),
                          of->tensor->dtype, count);
        convert_from_double(to, DT_F32, room->values, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t block = (at + i) / STATE_BLOCK;
        float scale;
        memcpy(&scale, of->scale->data.data + (size_t)block * sizeof scale, sizeof scale);
        to[i] = target->second ? state_second_value(from[at + i], scale)
                               : state_first_value(from[at + i], scale);
    }
}

static status put_run(const param *weight, stream *queue, const state_tensor *of, int64_t at,
                      int64_t count, int64_t to_at, const state_room *room, state_target *target)
{
    if (target->numbers)
        keep_numbers(of, at, count, to_at, room, target);
    else if (of->scale)
        return put_codes(weight, queue, of, at, count, to_at, room, target);
    else
        return put_stored(queue, of->tensor, at, count, to_at, room, target);
    return ST_OK;
}

/* Copies to the target those of this rank's elements of `weight` that the file's tensor has. Each
 * turn of the loop handles a run of `j` elements that is consecutive in this rank's memory and in
 * the file, or skips `j` that the file does not have. Where the writer held the same part of the
 * parameter, runs go on over the part's own rows, and so do blocks of codes. */
static status state_take(const param *weight, stream *queue, const state_tensor *of,
                         const state_slice *part, const state_room *room, state_target *target)
{
    const st_tensor *tensor = of->tensor;
    const int64_t most = STATE_CHUNK / STATE_LARGEST;
    const bool same = memcmp(&weight->held, &part->held, sizeof part->held) == 0;
    for (int64_t i = 0, j; i < weight->own_n; i += j) {
        int64_t stored, theirs, at = weight->own_first + i;
        j = weight->own_n - i < most ? weight->own_n - i : most;
        if (!same) {
            j = slice_run(&weight->held, at, j, &stored);
            at = slice_find(&part->held, stored);
        }
        if (at < 0) {
            int64_t gap = slice_gap(&part->held, stored);
            j = gap < j ? gap : j;
            continue;
        }
        if (!same)
            j = slice_run(&part->held, at, j, &theirs);
        at -= part->first;
        if (at < 0) {
            j = -at < j ? -at : j;
            continue;
        }
        if (at >= tensor->shape[0])
            continue;
        j = tensor->shape[0] - at < j ? tensor->shape[0] - at : j;
        TRY(put_run(weight, queue, of, at, j, i, room, target));
    }
    return ST_OK;
}

/* Encodes `count` of the numbers, at most STATE_CHUNK / STATE_LARGEST,
 * and sends codes and scales. */
static status send_codes(stream *queue, int64_t first, int64_t count, const state_room *room,
                         const state_target *target)
{
    const backend_vtable *backend = queue->dev->backend;
    float *scales = (float *)room->values;
    int64_t blocks = 0;
    for (int64_t i = 0; i < count; i += STATE_BLOCK) {
        const int64_t left = count - i;
        scales[blocks++] = state_encode_block(target->numbers + first + i,
                                              left < STATE_BLOCK ? (int)left : (int)STATE_BLOCK,
                                              target->second, room->narrow + i);
    }
    TRY(backend->to_device(queue, (uint8_t *)target->to + first, room->narrow, (size_t)count));
    TRY(backend->to_device(queue, target->scale + first / STATE_BLOCK, scales,
                           (size_t)blocks * sizeof *scales));
    return backend->wait(queue);
}

/* Writes the numbers that were kept, as codes or in the type of this device. */
static status state_put_numbers(const param *weight, stream *queue, const state_room *room,
                                state_target *target)
{
    const int64_t most = STATE_CHUNK / STATE_LARGEST;
    for (int64_t i = 0; i < weight->own_n; i += most) {
        const int64_t count = weight->own_n - i < most ? weight->own_n - i : most;
        const st_tensor numbers = {.dtype = DT_F32,
                                   .data = {.data = (const uint8_t *)(target->numbers + i)}};
        if (target->scale)
            TRY(send_codes(queue, i, count, room, target));
        else
            TRY(put_stored(queue, &numbers, 0, count, i, room, target));
    }
    target->found = weight->own_n;
    return ST_OK;
}

/* ---- the files ---- */

typedef struct state_files {
    st_file *file; /* [count] */
    char (*path)[STATUS_PATH_MAX];
    int count;
} state_files;

static void close_files(state_files *opened_files)
{
    for (int i = 0; i < opened_files->count; i++)
        st_close(&opened_files->file[i]);
    free(opened_files->file);
    free(opened_files->path);
}

/* Finds how many ranks wrote, from the name of any of their files. */
static status count_writers(const char *folder, int *out)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, folder, "%s", strerror(errno));
    int rank, end;
    *out = 0;
    for (struct dirent *entry; *out == 0 && (entry = readdir(dir));)
        if (sscanf(entry->d_name, "rank-%5d-of-%5d.safetensors%n", &rank, out, &end) != 2 ||
            entry->d_name[end] || *out < 1)
            *out = 0;
    closedir(dir);
    if (*out == 0)
        return FAIL_IN(ST_BAD_INPUT, folder, "the folder has no file rank-R-of-W.safetensors");
    return ST_OK;
}

static status open_files(const char *folder, state_files *opened_files)
{
    int ranks;
    TRY(count_writers(folder, &ranks));
    opened_files->file = calloc((size_t)ranks, sizeof *opened_files->file);
    opened_files->path = calloc((size_t)ranks, sizeof *opened_files->path);
    if (!opened_files->file || !opened_files->path)
        return FAIL(ST_NO_MEMORY, "no memory for %d files", ranks);
    for (int rank = 0; rank < ranks; rank++) {
        TRY(state_file_path(opened_files->path[rank], folder, (state_writer){rank, ranks}));
        TRY(st_open(opened_files->path[rank], &opened_files->file[rank]));
        opened_files->count++;
    }
    return ST_OK;
}

/* Finds what a file has of a tensor. *out_there is false if it has nothing of it. Values of a
 * frozen parameter may have another type than here, since they were trained before, or were stored
 * by a release that kept them in the type of trained ones. any: so may this tensor. */
static status find_tensor(const st_file *file, const char *path, const param *weight,
                          const char *name, st_dtype dtype, bool any, const st_tensor **out,
                          state_slice *out_slice, bool *out_there)
{
    const st_tensor *found = st_find(file, name);
    char key[STATE_NAME + 8];
    snprintf(key, sizeof key, "slice/%s", name);
    const char *text = st_meta_find(file, key);
    *out_there = found != NULL;
    if (!*out_there)
        return ST_OK;
    if ((weight->frozen || !weight->moment1 || any) &&
        (convert_known(found->dtype) || found->dtype == DT_U8))
        dtype = found->dtype;
    TRY(st_want(file, name, dtype, 1, path, out));
    slice whole = weight->held;
    for (int i = 0; i < SLICE_AXES; i++) {
        whole.first[i] = 0;
        whole.count[i] = whole.size[i];
    }
    *out_slice = (state_slice){.held = whole};
    if (text && (!state_slice_read(text, out_slice) ||
                 memcmp(out_slice->held.size, weight->held.size, sizeof weight->held.size) != 0))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "its metadata \"%s\" does not describe a part of %s: \"%s\"", key,
                       weight->name, text);
    int64_t held = slice_count(&out_slice->held), count = (*out)->shape[0];
    if ((!text && count != held) || out_slice->first > held - count)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "tensor \"%s\" has %lld elements, but the model has %lld there", name,
                       (long long)count, (long long)held);
    return ST_OK;
}

/* What kind of moments a dtype is, for messages. */
static const char *kind_of(st_dtype dtype)
{
    return dtype == DT_U8 ? "in 8 bits" : "in float32";
}

/* Finds the scales of a stored moment, and refuses one of another kind unless it is converted. */
static status find_scales(const st_file *file, const char *path, const state_list *list,
                          size_t index, bool convert, state_tensor *inout)
{
    const st_tensor *tensor = inout->tensor;
    const int64_t blocks = (tensor->shape[0] + STATE_BLOCK - 1) / STATE_BLOCK;
    const st_dtype own = list->tensor[index].dtype;
    char name[STATE_NAME];
    if ((tensor->dtype == DT_U8) != (own == DT_U8) && !convert)
        return FAIL_IN(ST_CONFIG, path,
                       "\"%s\" is %s here and %s in this run: set optimizer.states as it was, or "
                       "checkpoint.convert_states to true",
                       list->name[index], kind_of(tensor->dtype), kind_of(own));
    if (tensor->dtype != DT_U8)
        return ST_OK;
    snprintf(name, sizeof name, "%s/%s", state_prefix[list->which[index] + 2],
             list->of[index]->name);
    TRY(st_want(file, name, DT_F32, 1, path, &inout->scale));
    if (inout->scale->shape[0] != blocks)
        return FAIL_IN(ST_BAD_INPUT, path, "tensor \"%s\" has %lld scales instead of %lld", name,
                       (long long)inout->scale->shape[0], (long long)blocks);
    return ST_OK;
}

/* Values in BF16 are not those of float32 master values, though the CPU stores both as float32. */
static status check_master(const params *registry, const state_files *files)
{
    for (int k = 0; k < files->count && !registry->convert_states; k++) {
        const bool rounded = st_meta_find(&files->file[k], STATE_MASTER) != NULL;
        if (rounded != registry->act_masters)
            return FAIL_IN(ST_CONFIG, files->path[k],
                           "the values here are of training.master: %s, and this run has %s: set "
                           "it as it was, or checkpoint.convert_states to true",
                           rounded ? "bf16" : "float32", rounded ? "float32" : "bf16");
    }
    return ST_OK;
}

/* A row of the base need not be in the files: it then stays as it was loaded from model.path. */
static status load_array(const state_files *files, const char *folder, const state_list *list,
                         size_t index, bool convert, stream *queue, const state_room *room,
                         state_target *target)
{
    const bool moment = list->which[index] > 0;
    const param *weight = list->of[index];
    for (int k = 0; k < files->count && target->found < weight->own_n; k++) {
        state_tensor of = {0};
        state_slice part;
        bool there;
        TRY(find_tensor(&files->file[k], files->path[k], weight, list->name[index], target->dtype,
                        moment || convert, &of.tensor, &part, &there));
        if (!there)
            continue;
        if (moment)
            TRY(find_scales(&files->file[k], files->path[k], list, index, convert, &of));
        TRY(state_take(weight, queue, &of, &part, room, target));
        st_forget(of.tensor->data);
    }
    if (target->numbers && target->found == weight->own_n)
        TRY(state_put_numbers(weight, queue, room, target));
    if (target->found < weight->own_n && !target->frozen)
        return FAIL_IN(ST_BAD_INPUT, folder,
                       "tensor \"%s\": the files have only %lld of the %lld elements that this "
                       "rank stores",
                       list->name[index], (long long)target->found, (long long)weight->own_n);
    return ST_OK;
}

static status load_arrays(params *registry, stream *queue, const state_files *files,
                          const char *folder, const state_list *list, const state_room *room)
{
    for (size_t i = 0; i < list->count; i++) {
        param *row = &registry->list[list->of[i] - registry->list];
        const int which = list->which[i];
        state_target target = {.to = list->array[i],
                               .dtype = list->tensor[i].dtype,
                               .frozen = row->frozen && !row->adapter,
                               .second = which == 2,
                               .scale = which == 1   ? row->scale1
                                        : which == 2 ? row->scale2
                                                     : NULL};
        if (state_is_scale(which)) /* it comes with its moment */
            continue;
        if (which > 0 && registry->convert_states)
            target.numbers = malloc((size_t)row->own_n * sizeof *target.numbers);
        if (which > 0 && registry->convert_states && !target.numbers)
            return FAIL(ST_NO_MEMORY, "no memory to convert the moments of %s", row->name);
        const status st =
            load_array(files, folder, list, i, registry->convert_states, queue, room, &target);
        free(target.numbers);
        TRY(st);
        row->kept |= target.differs;
        registry->bytes_read += target.found * (int64_t)st_dtype_size(target.dtype);
        if (target.scale)
            registry->bytes_read +=
                (target.found + STATE_BLOCK - 1) / STATE_BLOCK * (int64_t)sizeof(float);
    }
    return params_refresh(registry, queue);
}

status train_state_load(params *registry, stream *queue, const char *folder)
{
    state_files files = {0};
    state_list list = {0};
    status st;
    uint8_t *rooms = malloc(3 * STATE_CHUNK);
    if (!rooms)
        return FAIL(ST_NO_MEMORY, "no memory to read a checkpoint");
    const state_room room = {(double *)rooms, rooms + STATE_CHUNK, rooms + 2 * STATE_CHUNK};
    TRY_OR(done, open_files(folder, &files));
    TRY_OR(done, check_master(registry, &files));
    TRY_OR(done, state_list_make(registry, false, &list));
    st = load_arrays(registry, queue, &files, folder, &list, &room);
done:
    state_list_done(&list);
    close_files(&files);
    free(rooms);
    return st;
}

status train_state_has_frozen(const params *registry, const char *folder, bool *out)
{
    state_files files = {0};
    *out = false;
    const status st = open_files(folder, &files);
    for (int64_t i = 0; i < registry->count && st == ST_OK; i++) {
        const param *row = &registry->list[i];
        char name[STATE_NAME];
        snprintf(name, sizeof name, "%s/%s", state_prefix[0], row->name);
        for (int j = 0; j < files.count && row->frozen && !row->adapter; j++)
            *out |= st_find(&files.file[j], name) != NULL;
    }
    close_files(&files);
    return st;
}
