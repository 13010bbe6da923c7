/* state_list.c: see state_list.h. */
#include "trainer/checkpoint/state_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "trainer/checkpoint/hf_write.h"
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
