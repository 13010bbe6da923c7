/* train_state.c: see train_state.h. Reading maps the files of all writers and takes, for each run
 * of elements that this rank stores, whatever a file has of it. The layouts of the writers and of
 * the readers need not be the same. */
#include "trainer/checkpoint/train_state.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model_folder/safetensors.h"
#include "common/base/words.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/convert.h"

enum { CHUNK_BYTES = 1 << 22, LARGEST = 8, ARRAYS = 3, TENSOR_NAME = 160, SLICE_TEXT = 256 };
static const char *const prefixes[ARRAYS] = {"value", "moment1", "moment2"};

void train_state_name(state_writer writer, char out[64])
{
    snprintf(out, 64, "rank-%05d-of-%05d.safetensors", writer.rank, writer.ranks);
}

static status file_path(char out[STATUS_PATH_MAX], const char *folder, state_writer writer)
{
    char name[64];
    train_state_name(writer, name);
    return hf_path(out, folder, name);
}

/* A frozen parameter has the copy that is computed with and no other. */
static void *array_of(const param *weight, int which)
{
    void *value = weight->value ? weight->value : weight->own_act;
    return which == 0 ? value : which == 1 ? weight->moment1 : weight->moment2;
}

static st_dtype dtype_of(const param *weight, int which)
{
    return which > 0       ? weight->moment_dtype
           : weight->value ? weight->value_dtype
                           : weight->act_dtype;
}

/* The tensors of this rank's file, all [count]. */
typedef struct state_list {
    st_tensor *tensor;
    void **array; /* where the values are in device memory */
    char (*name)[TENSOR_NAME];
    const param **of; /* the parameter that each belongs to */
    size_t count;
    bool writing; /* not the rows of the base, whose values model.path has */
} state_list;

static void list_done(state_list *states)
{
    free(states->tensor);
    free(states->array);
    free(states->name);
    free(states->of);
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
    snprintf(list->name[at], TENSOR_NAME, "%s/%s", prefixes[which], entry->name);
    list->array[at] = array_of(entry, which);
    list->of[at] = entry;
    list->tensor[at] = (st_tensor){.name = list->name[at],
                                   .dtype = dtype,
                                   .n_dims = 1,
                                   .shape = {entry->own_n},
                                   .data = {.size = (size_t)entry->own_n * size}};
    list->count++;
}

/* Larger elements come first in a file, so that all are aligned. */
static status list_make(const params *registry, bool writing, state_list *list)
{
    size_t most = (size_t)(registry->count * ARRAYS);
    *list = (state_list){.writing = writing,
                         .tensor = calloc(most, sizeof *list->tensor),
                         .array = calloc(most, sizeof *list->array),
                         .name = calloc(most, sizeof *list->name),
                         .of = calloc(most, sizeof *list->of)};
    if (!list->tensor || !list->array || !list->name || !list->of) {
        list_done(list);
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu tensors", most);
    }
    for (size_t size = LARGEST; size > 0; size /= 2)
        for (int which = 0; which < ARRAYS; which++)
            for (int64_t i = 0; i < registry->count; i++)
                list_add(list, &registry->list[i], which, size);
    return ST_OK;
}

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
        for (size_t at = 0, size = list->tensor[i].data.size; at < size; at += CHUNK_BYTES) {
            size_t count = size - at < CHUNK_BYTES ? size - at : CHUNK_BYTES;
            TRY(backend->to_host(queue, chunk, (const char *)list->array[i] + at, count));
            TRY(backend->wait(queue));
            TRY(write_block(file, path, chunk, count));
        }
    return ST_OK;
}

/* What a file has of a parameter. */
typedef struct stored_slice {
    slice held;    /* the writer's local tensor */
    int64_t first; /* the local element with which the file's tensor begins */
} stored_slice;

static void print_slice(const stored_slice *part, char out[SLICE_TEXT])
{
    const int64_t *const list[] = {part->held.size, part->held.first, part->held.count};
    size_t count = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int j = 0; j < SLICE_AXES; j++)
            count = words_add(out, SLICE_TEXT, count, "%lld ", (long long)list[i][j]);
    words_add(out, SLICE_TEXT, count, "%lld", (long long)part->first);
}

static bool read_slice(const char *text, stored_slice *out)
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

/* *out: an entry "slice/NAME" for every tensor, in one block of heap memory with the texts after
 * the list. */
static status list_slices(const state_list *states, st_meta **out)
{
    char(*text)[SLICE_TEXT];
    st_meta *list = calloc(states->count + 1, sizeof *list + sizeof *text + TENSOR_NAME);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu slices", states->count);
    text = (char(*)[SLICE_TEXT])(list + states->count + 1);
    char(*key)[TENSOR_NAME] = (char(*)[TENSOR_NAME])(text + states->count + 1);
    for (size_t i = 0; i < states->count; i++) {
        stored_slice part = {states->of[i]->held, states->of[i]->own_first};
        snprintf(key[i], sizeof key[i], "slice/%s", states->name[i]);
        print_slice(&part, text[i]);
        list[i] = (st_meta){key[i], text[i]};
    }
    *out = list;
    return ST_OK;
}

status train_state_write(const params *registry, stream *queue, state_writer writer,
                         const char *folder)
{
    char path[STATUS_PATH_MAX];
    state_list list = {0};
    st_meta *slices = NULL;
    uint8_t *header = NULL;
    size_t header_size;
    FILE *file = NULL;
    status st;
    TRY(params_may_be_kept(registry));
    void *chunk = malloc(CHUNK_BYTES);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to write a checkpoint");
    TRY_OR(done, file_path(path, folder, writer));
    TRY_OR(done, list_make(registry, true, &list));
    if (writer.ranks > 1)
        TRY_OR(done, list_slices(&list, &slices));
    TRY_OR(done, st_header(list.tensor, list.count, slices, slices ? list.count : 0, &header,
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
    list_done(&list);
    free(chunk);
    return st;
}

/* Finds what a file has of a tensor. *out_there is false if it has nothing of it. Values of a
 * frozen parameter may have another type than here, since they were trained before, or were stored
 * by a release that kept them in the type of trained ones. */
static status find_stored(const st_file *file, const char *path, const param *weight,
                          const char *name, st_dtype dtype, const st_tensor **out,
                          stored_slice *out_slice, bool *out_there)
{
    const st_tensor *found = st_find(file, name);
    char key[TENSOR_NAME + 8];
    snprintf(key, sizeof key, "slice/%s", name);
    const char *text = st_meta_find(file, key);
    *out_there = found != NULL;
    if (!*out_there)
        return ST_OK;
    if ((weight->frozen || !weight->moment1) && convert_known(found->dtype))
        dtype = found->dtype;
    TRY(st_want(file, name, dtype, 1, path, out));
    slice whole = weight->held;
    for (int i = 0; i < SLICE_AXES; i++) {
        whole.first[i] = 0;
        whole.count[i] = whole.size[i];
    }
    *out_slice = (stored_slice){.held = whole};
    if (text && (!read_slice(text, out_slice) ||
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

/* Host memory for values on their way, [CHUNK_BYTES] each. */
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
} state_target;

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
    if (target->frozen && device_has_storage(queue->dev)) {
        TRY(backend->to_host(queue, room->was, to, bytes));
        TRY(backend->wait(queue));
        target->differs |= memcmp(room->was, from, bytes) != 0;
    }
    TRY(backend->to_device(queue, to, from, bytes));
    target->found += count;
    return backend->wait(queue);
}

/* Copies to the target those of this rank's elements of `weight` that the file's tensor has. Each
 * turn of the loop handles a run of `j` elements that is consecutive in the parameter, in this
 * rank's memory and in the file, or skips `j` that the file does not have. */
static status take_stored(const param *weight, stream *queue, const st_tensor *tensor,
                          const stored_slice *part, const state_room *room, state_target *target)
{
    const int64_t most = CHUNK_BYTES / LARGEST;
    for (int64_t i = 0, j; i < weight->own_n; i += j) {
        int64_t stored, theirs;
        j = slice_run(&weight->held, weight->own_first + i,
                      weight->own_n - i < most ? weight->own_n - i : most, &stored);
        int64_t at = slice_find(&part->held, stored);
        if (at < 0) {
            int64_t gap = slice_gap(&part->held, stored);
            j = gap < j ? gap : j;
            continue;
        }
        j = slice_run(&part->held, at, j, &theirs);
        at -= part->first;
        if (at < 0) {
            j = -at < j ? -at : j;
            continue;
        }
        if (at >= tensor->shape[0])
            continue;
        j = tensor->shape[0] - at < j ? tensor->shape[0] - at : j;
        TRY(put_stored(queue, tensor, at, j, i, room, target));
    }
    return ST_OK;
}

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
        TRY(file_path(opened_files->path[rank], folder, (state_writer){rank, ranks}));
        TRY(st_open(opened_files->path[rank], &opened_files->file[rank]));
        opened_files->count++;
    }
    return ST_OK;
}

/* A row of the base need not be in the files: it then stays as it was loaded from model.path. */
static status load_array(const state_files *files, const char *folder, const state_list *list,
                         size_t index, stream *queue, const state_room *room, state_target *target)
{
    const param *weight = list->of[index];
    for (int k = 0; k < files->count && target->found < weight->own_n; k++) {
        const st_tensor *tensor;
        stored_slice part;
        bool there;
        TRY(find_stored(&files->file[k], files->path[k], weight, list->name[index], target->dtype,
                        &tensor, &part, &there));
        if (!there)
            continue;
        TRY(take_stored(weight, queue, tensor, &part, room, target));
        st_forget(tensor->data);
    }
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
        state_target target = {.to = list->array[i],
                               .dtype = list->tensor[i].dtype,
                               .frozen = row->frozen && !row->adapter};
        TRY(load_array(files, folder, list, i, queue, room, &target));
        row->kept |= target.differs;
        registry->bytes_read += target.found * (int64_t)st_dtype_size(target.dtype);
    }
    return params_refresh(registry, queue);
}

status train_state_load(params *registry, stream *queue, const char *folder)
{
    state_files files = {0};
    state_list list = {0};
    status st;
    uint8_t *rooms = malloc(3 * CHUNK_BYTES);
    if (!rooms)
        return FAIL(ST_NO_MEMORY, "no memory to read a checkpoint");
    const state_room room = {(double *)rooms, rooms + CHUNK_BYTES, rooms + 2 * CHUNK_BYTES};
    TRY_OR(done, open_files(folder, &files));
    TRY_OR(done, list_make(registry, false, &list));
    st = load_arrays(registry, queue, &files, folder, &list, &room);
done:
    list_done(&list);
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
        char name[TENSOR_NAME];
        snprintf(name, sizeof name, "%s/%s", prefixes[0], row->name);
        for (int j = 0; j < files.count && row->frozen && !row->adapter; j++)
            *out |= st_find(&files.file[j], name) != NULL;
    }
    close_files(&files);
    return st;
}
