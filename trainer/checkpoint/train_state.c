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

enum { CHUNK_BYTES = 1 << 22, ARRAYS = 3, TENSOR_NAME = 160, SLICE_TEXT = 256 };
static const char *const prefixes[ARRAYS] = {"value", "moment1", "moment2"};

void train_state_name(state_writer writer, char out[64])
{
    snprintf(out, 64, "rank-%05d-of-%05d.safetensors", writer.rank, writer.ranks);
}

static status file_path(char out[STATUS_PATH_MAX], const char *folder, state_writer w)
{
    char name[64];
    train_state_name(w, name);
    return hf_path(out, folder, name);
}

static void *array_of(const param *p, int which)
{
    return which == 0 ? p->value : which == 1 ? p->moment1 : p->moment2;
}

/* The tensors of this rank's file, all [count]. */
typedef struct state_list {
    st_tensor *tensor;
    void **array; /* where the values are in device memory */
    char (*name)[TENSOR_NAME];
    const param **of; /* the parameter that each belongs to */
    size_t count;
} state_list;

static void list_done(state_list *l)
{
    free(l->tensor);
    free(l->array);
    free(l->name);
    free(l->of);
}

static status list_make(const params *registry, st_dtype acc, state_list *list)
{
    size_t most = (size_t)(registry->count * ARRAYS);
    *list = (state_list){.tensor = calloc(most, sizeof *list->tensor),
                         .array = calloc(most, sizeof *list->array),
                         .name = calloc(most, sizeof *list->name),
                         .of = calloc(most, sizeof *list->of)};
    if (!list->tensor || !list->array || !list->name || !list->of) {
        list_done(list);
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu tensors", most);
    }
    for (int which = 0; which < ARRAYS; which++)
        for (int64_t i = 0; i < registry->count; i++) {
            const param *q = &registry->list[i];
            if (!array_of(q, which) || q->own_n == 0)
                continue;
            snprintf(list->name[list->count], TENSOR_NAME, "%s/%s", prefixes[which], q->name);
            list->array[list->count] = array_of(q, which);
            list->of[list->count] = q;
            list->tensor[list->count] =
                (st_tensor){.name = list->name[list->count],
                            .dtype = acc,
                            .n_dims = 1,
                            .shape = {q->own_n},
                            .data = {.size = (size_t)q->own_n * st_dtype_size(acc)}};
            list->count++;
        }
    return ST_OK;
}

static status write_block(FILE *f, const char *path, const void *data, size_t size)
{
    if (size && fwrite(data, 1, size, f) != size)
        return FAIL_IN(ST_IO, path, "the file cannot be written: %s", strerror(errno));
    return ST_OK;
}

/* Leaves a hole in the file for the values of a device without storage. */
static status put_hole(FILE *f, const char *path, const state_list *l)
{
    off_t end = ftello(f);
    for (size_t i = 0; i < l->count; i++)
        end += (off_t)l->tensor[i].data.size;
    if (fflush(f) != 0 || ftruncate(fileno(f), end) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}

static status put_arrays(FILE *file, const char *path, const state_list *list, stream *s,
                         void *chunk)
{
    const backend_vtable *v = s->dev->backend;
    if (!device_has_storage(s->dev))
        return put_hole(file, path, list);
    for (size_t i = 0; i < list->count; i++)
        for (size_t at = 0, size = list->tensor[i].data.size; at < size; at += CHUNK_BYTES) {
            size_t n = size - at < CHUNK_BYTES ? size - at : CHUNK_BYTES;
            TRY(v->to_host(s, chunk, (const char *)list->array[i] + at, n));
            TRY(v->wait(s));
            TRY(write_block(file, path, chunk, n));
        }
    return ST_OK;
}

/* What a file has of a parameter. */
typedef struct stored_slice {
    slice held;    /* the writer's local tensor */
    int64_t first; /* the local element with which the file's tensor begins */
} stored_slice;

static void print_slice(const stored_slice *x, char out[SLICE_TEXT])
{
    const int64_t *const list[] = {x->held.size, x->held.first, x->held.count};
    size_t n = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int a = 0; a < SLICE_AXES; a++)
            n = words_add(out, SLICE_TEXT, n, "%lld ", (long long)list[i][a]);
    words_add(out, SLICE_TEXT, n, "%lld", (long long)x->first);
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
    for (int a = 0; a < SLICE_AXES; a++)
        if (out->held.count[a] < 1 || out->held.first[a] > out->held.size[a] - out->held.count[a] ||
            __builtin_mul_overflow(elements, out->held.size[a], &elements))
            return false;
    return !*text;
}

/* *out: an entry "slice/NAME" for every tensor, in one block of heap memory with the texts after
 * the list. */
static status list_slices(const state_list *l, st_meta **out)
{
    char(*text)[SLICE_TEXT];
    st_meta *list = calloc(l->count + 1, sizeof *list + sizeof *text + TENSOR_NAME);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu slices", l->count);
    text = (char(*)[SLICE_TEXT])(list + l->count + 1);
    char(*key)[TENSOR_NAME] = (char(*)[TENSOR_NAME])(text + l->count + 1);
    for (size_t i = 0; i < l->count; i++) {
        stored_slice x = {l->of[i]->held, l->of[i]->own_first};
        snprintf(key[i], sizeof key[i], "slice/%s", l->name[i]);
        print_slice(&x, text[i]);
        list[i] = (st_meta){key[i], text[i]};
    }
    *out = list;
    return ST_OK;
}

status train_state_write(const params *registry, stream *s, state_writer writer, const char *folder)
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
    TRY_OR(done, list_make(registry, s->dev->backend->acc, &list));
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
    TRY_OR(done, put_arrays(file, path, &list, s, chunk));
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

/* Finds what a file has of a tensor. *out_there is false if it has nothing of it. */
static status find_stored(const st_file *file, const char *path, const param *p, const char *name,
                          st_dtype acc, const st_tensor **out, stored_slice *out_slice,
                          bool *out_there)
{
    char key[TENSOR_NAME + 8];
    snprintf(key, sizeof key, "slice/%s", name);
    const char *text = st_meta_find(file, key);
    *out_there = st_find(file, name) != NULL;
    if (!*out_there)
        return ST_OK;
    TRY(st_want(file, name, acc, 1, path, out));
    slice whole = p->held;
    for (int a = 0; a < SLICE_AXES; a++) {
        whole.first[a] = 0;
        whole.count[a] = whole.size[a];
    }
    *out_slice = (stored_slice){.held = whole};
    if (text && (!read_slice(text, out_slice) ||
                 memcmp(out_slice->held.size, p->held.size, sizeof p->held.size) != 0))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "its metadata \"%s\" does not describe a part of %s: \"%s\"", key, p->name,
                       text);
    int64_t held = slice_count(&out_slice->held), n = (*out)->shape[0];
    if ((!text && n != held) || out_slice->first > held - n)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "tensor \"%s\" has %lld elements, but the model has %lld there", name,
                       (long long)n, (long long)held);
    return ST_OK;
}

/* Copies to `to` those of this rank's elements of p that the file's tensor has, and adds their
 * number to *inout_found. Each turn of the loop handles a run of n elements that is consecutive in
 * the parameter, in this rank's memory and in the file, or skips n that the file does not have. */
static status take_stored(const param *p, stream *s, const st_tensor *tensor, const stored_slice *x,
                          void *to, int64_t *inout_found)
{
    const backend_vtable *v = s->dev->backend;
    const int64_t size = (int64_t)st_dtype_size(v->acc), most = CHUNK_BYTES / size;
    for (int64_t i = 0, n; i < p->own_n; i += n) {
        int64_t stored, theirs;
        n = slice_run(&p->held, p->own_first + i, p->own_n - i < most ? p->own_n - i : most,
                      &stored);
        int64_t at = slice_find(&x->held, stored);
        if (at < 0) {
            int64_t gap = slice_gap(&x->held, stored);
            n = gap < n ? gap : n;
            continue;
        }
        n = slice_run(&x->held, at, n, &theirs);
        at -= x->first;
        if (at < 0) {
            n = -at < n ? -at : n;
            continue;
        }
        if (at >= tensor->shape[0])
            continue;
        n = tensor->shape[0] - at < n ? tensor->shape[0] - at : n;
        TRY(v->to_device(s, (char *)to + i * size, tensor->data.data + at * size,
                         (size_t)(n * size)));
        TRY(v->wait(s));
        *inout_found += n;
    }
    return ST_OK;
}

typedef struct state_files {
    st_file *file; /* [count] */
    char (*path)[STATUS_PATH_MAX];
    int count;
} state_files;

static void close_files(state_files *f)
{
    for (int i = 0; i < f->count; i++)
        st_close(&f->file[i]);
    free(f->file);
    free(f->path);
}

/* Finds how many ranks wrote, from the name of any of their files. */
static status count_writers(const char *folder, int *out)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, folder, "%s", strerror(errno));
    int rank, end;
    *out = 0;
    for (struct dirent *e; *out == 0 && (e = readdir(dir));)
        if (sscanf(e->d_name, "rank-%5d-of-%5d.safetensors%n", &rank, out, &end) != 2 ||
            e->d_name[end] || *out < 1)
            *out = 0;
    closedir(dir);
    if (*out == 0)
        return FAIL_IN(ST_BAD_INPUT, folder, "the folder has no file rank-R-of-W.safetensors");
    return ST_OK;
}

static status open_files(const char *folder, state_files *f)
{
    int ranks;
    TRY(count_writers(folder, &ranks));
    f->file = calloc((size_t)ranks, sizeof *f->file);
    f->path = calloc((size_t)ranks, sizeof *f->path);
    if (!f->file || !f->path)
        return FAIL(ST_NO_MEMORY, "no memory for %d files", ranks);
    for (int r = 0; r < ranks; r++) {
        TRY(file_path(f->path[r], folder, (state_writer){r, ranks}));
        TRY(st_open(f->path[r], &f->file[r]));
        f->count++;
    }
    return ST_OK;
}

static status load_array(const state_files *files, const char *folder, const state_list *list,
                         size_t i, stream *s)
{
    const param *p = list->of[i];
    int64_t found = 0;
    for (int k = 0; k < files->count && found < p->own_n; k++) {
        const st_tensor *tensor;
        stored_slice x;
        bool there;
        TRY(find_stored(&files->file[k], files->path[k], p, list->name[i], s->dev->backend->acc,
                        &tensor, &x, &there));
        if (!there)
            continue;
        TRY(take_stored(p, s, tensor, &x, list->array[i], &found));
        st_forget(tensor->data);
    }
    if (found < p->own_n)
        return FAIL_IN(ST_BAD_INPUT, folder,
                       "tensor \"%s\": the files have only %lld of the %lld elements that this "
                       "rank stores",
                       list->name[i], (long long)found, (long long)p->own_n);
    return ST_OK;
}

status train_state_load(params *registry, stream *s, const char *folder)
{
    state_files files = {0};
    state_list list = {0};
    status st;
    TRY_OR(done, open_files(folder, &files));
    TRY_OR(done, list_make(registry, s->dev->backend->acc, &list));
    for (size_t i = 0; i < list.count; i++) {
        TRY_OR(done, load_array(&files, folder, &list, i, s));
        registry->bytes_read += (int64_t)list.tensor[i].data.size;
    }
    st = params_refresh(registry, s);
done:
    list_done(&list);
    close_files(&files);
    return st;
}
