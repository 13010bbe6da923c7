#include "trainer/checkpoint/train_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/safetensors.h"
#include "trainer/checkpoint/hf_write.h"

enum { CHUNK_BYTES = 1 << 22, ARRAYS = 3, TENSOR_NAME = 160 };
static const char file_name[] = "rank-00000-of-00001.safetensors";
static const char *const prefixes[ARRAYS] = {"value", "moment1", "moment2"};

static void *array_of(const param *p, int which)
{
    return which == 0 ? p->value : which == 1 ? p->moment1 : p->moment2;
}

typedef struct state_list {
    st_tensor *tensor;
    void **array; /* where each lives */
    char (*name)[TENSOR_NAME];
    size_t n;
} state_list;

static void list_done(state_list *l)
{
    free(l->tensor);
    free(l->array);
    free(l->name);
}

static status list_make(const params *p, st_dtype acc, state_list *l)
{
    size_t most = (size_t)(p->n * ARRAYS);
    *l = (state_list){.tensor = calloc(most, sizeof *l->tensor),
                      .array = calloc(most, sizeof *l->array),
                      .name = calloc(most, sizeof *l->name)};
    if (!l->tensor || !l->array || !l->name) {
        list_done(l);
        return FAIL(ST_NO_MEMORY, "no memory for a list of %zu tensors", most);
    }
    for (int which = 0; which < ARRAYS; which++)
        for (int64_t i = 0; i < p->n; i++) {
            const param *q = &p->list[i];
            if (!array_of(q, which))
                continue;
            snprintf(l->name[l->n], TENSOR_NAME, "%s/%s", prefixes[which], q->name);
            l->array[l->n] = array_of(q, which);
            l->tensor[l->n] = (st_tensor){.name = l->name[l->n],
                                          .dtype = acc,
                                          .n_dims = 1,
                                          .shape = {q->own_n},
                                          .data = {.size = (size_t)q->own_n * st_dtype_size(acc)}};
            l->n++;
        }
    return ST_OK;
}

static status put(FILE *f, const char *path, const void *data, size_t size)
{
    if (size && fwrite(data, 1, size, f) != size)
        return FAIL_IN(ST_IO, path, "write failed: %s", strerror(errno));
    return ST_OK;
}

static status put_arrays(FILE *f, const char *path, const state_list *l, stream *s, void *chunk)
{
    const backend_vtable *v = s->dev->v;
    for (size_t i = 0; i < l->n; i++)
        for (size_t at = 0, size = l->tensor[i].data.size; at < size; at += CHUNK_BYTES) {
            size_t n = size - at < CHUNK_BYTES ? size - at : CHUNK_BYTES;
            TRY(v->to_host(s, chunk, (const char *)l->array[i] + at, n));
            TRY(v->wait(s));
            TRY(put(f, path, chunk, n));
        }
    return ST_OK;
}

status train_state_write(const params *p, stream *s, const char *folder)
{
    char path[STATUS_PATH_MAX];
    state_list l = {0};
    uint8_t *header = NULL;
    size_t header_size;
    FILE *f = NULL;
    status st;
    void *chunk = malloc(CHUNK_BYTES);
    if (!chunk)
        return FAIL(ST_NO_MEMORY, "no memory to write a checkpoint");
    TRY_OR(done, hf_path(path, folder, file_name));
    TRY_OR(done, list_make(p, s->dev->v->acc, &l));
    TRY_OR(done, st_header(l.tensor, l.n, NULL, 0, &header, &header_size));
    f = fopen(path, "wbe"); /* the folder has its name only when all of it is whole */
    if (!f) {
        st = FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
        goto done;
    }
    TRY_OR(done, put(f, path, header, header_size));
    TRY_OR(done, put_arrays(f, path, &l, s, chunk));
    if (fflush(f) != 0 || fsync(fileno(f)) != 0)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
done:
    if (f && fclose(f) != 0 && st == ST_OK)
        st = FAIL_IN(ST_IO, path, "%s", strerror(errno));
    free(header);
    list_done(&l);
    free(chunk);
    return st;
}

static status load_array(const st_file *f, const char *path, const st_tensor *want, void *to,
                         stream *s)
{
    const st_tensor *t;
    TRY(st_want(f, want->name, want->dtype, 1, path, &t));
    if (t->data.size != want->data.size)
        return FAIL_IN(ST_BAD_INPUT, path, "tensor \"%s\" has %lld elements, the model %lld",
                       want->name, (long long)t->shape[0], (long long)want->shape[0]);
    for (size_t at = 0; at < t->data.size; at += CHUNK_BYTES) {
        size_t n = t->data.size - at < CHUNK_BYTES ? t->data.size - at : CHUNK_BYTES;
        TRY(s->dev->v->to_device(s, (char *)to + at, t->data.data + at, n));
        TRY(s->dev->v->wait(s));
    }
    st_forget(t->data);
    return ST_OK;
}

status train_state_load(params *p, stream *s, const char *folder)
{
    char path[STATUS_PATH_MAX];
    st_file f = {0};
    state_list l = {0};
    status st;
    TRY(hf_path(path, folder, file_name));
    TRY(st_open(path, &f));
    TRY_OR(done, list_make(p, s->dev->v->acc, &l));
    for (size_t i = 0; i < l.n; i++)
        TRY_OR(done, load_array(&f, path, &l.tensor[i], l.array[i], s));
    st = params_refresh(p, s);
done:
    list_done(&l);
    st_close(&f);
    return st;
}
