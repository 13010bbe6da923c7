/* head.c: decides whether the head's weights are the embedding's, by the rules of head.h. */
#include "trainer/model/head.h"

#include <stdio.h>
#include <string.h>

#include "trainer/model/convert.h"
#include "trainer/model/hf_folder.h"

static const char key[] = "tie_word_embeddings";

static status read_tie(const json_value *object, const char *source, bool *inout)
{
    return json_find(object, key) ? json_want_bool(object, key, source, inout) : ST_OK;
}

status head_read_ties(const json_value *config, const char *source, head_ties *out)
{
    const json_value *text = json_find(config, "text_config");
    *out = (head_ties){0};
    TRY(read_tie(config, source, &out->top));
    out->text = out->top && !text;
    return text ? read_tie(text, source, &out->text) : ST_OK;
}

/* Compares by value, whatever the dtypes, as transformers does. */
static bool same_values(const st_tensor *first, const st_tensor *second)
{
    enum { CHUNK = 1024 };
    double x[CHUNK], y[CHUNK];
    if (first->n_dims != second->n_dims ||
        memcmp(first->shape, second->shape, (size_t)first->n_dims * sizeof *first->shape) != 0)
        return false;
    if (first->dtype == second->dtype)
        return memcmp(first->data.data, second->data.data, first->data.size) == 0;
    if (!convert_known(first->dtype) || !convert_known(second->dtype))
        return false;
    const size_t wide_a = st_dtype_size(first->dtype), wide_b = st_dtype_size(second->dtype);
    const int64_t count = (int64_t)(first->data.size / wide_a);
    for (int64_t at = 0, j; at < count; at += j) {
        j = count - at < CHUNK ? count - at : CHUNK;
        convert_to_double(x, first->data.data + (size_t)at * wide_a, first->dtype, j);
        convert_to_double(y, second->data.data + (size_t)at * wide_b, second->dtype, j);
        for (int64_t i = 0; i < j; i++)
            if (x[i] != y[i])
                return false;
    }
    return true;
}

status head_is_tied(const head_ties *ties, const char *folder, const char *text_prefix, bool *out)
{
    hf_folder hf = {0};
    char name[64];
    const bool either = ties->top || ties->text;
    *out = ties->top;
    if (!either || !hf_has_weights(folder))
        return ST_OK;
    TRY(hf_folder_open(folder, &hf));
    snprintf(name, sizeof name, "%sembed_tokens.weight", text_prefix);
    const st_tensor *head = hf_folder_find(&hf, "lm_head.weight");
    const st_tensor *embedding = hf_folder_find(&hf, name);
    /* If the embedding is missing, loading the folder fails and names it. */
    *out = head ? ties->top && (!embedding || same_values(head, embedding)) : either;
    hf_folder_close(&hf);
    return ST_OK;
}
