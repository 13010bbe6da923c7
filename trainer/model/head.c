/* head.c: decides whether the head's weights are the embedding's, by the rules of head.h. */
#include "trainer/model/head.h"

#include <stdio.h>
#include <string.h>

#include "trainer/model/convert.h"
#include "trainer/model/hf_folder.h"

static const char key[] = "tie_word_embeddings";

static status read_tie(const json_value *o, const char *source, bool *inout)
{
    return json_find(o, key) ? json_want_bool(o, key, source, inout) : ST_OK;
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
static bool same_values(const st_tensor *a, const st_tensor *b)
{
    enum { CHUNK = 1024 };
    double x[CHUNK], y[CHUNK];
    if (a->n_dims != b->n_dims ||
        memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) != 0)
        return false;
    if (a->dtype == b->dtype)
        return memcmp(a->data.data, b->data.data, a->data.size) == 0;
    if (!convert_known(a->dtype) || !convert_known(b->dtype))
        return false;
    const size_t wide_a = st_dtype_size(a->dtype), wide_b = st_dtype_size(b->dtype);
    const int64_t count = (int64_t)(a->data.size / wide_a);
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < CHUNK ? count - at : CHUNK;
        convert_to_double(x, a->data.data + (size_t)at * wide_a, a->dtype, n);
        convert_to_double(y, b->data.data + (size_t)at * wide_b, b->dtype, n);
        for (int64_t i = 0; i < n; i++)
            if (x[i] != y[i])
                return false;
    }
    return true;
}

status head_is_tied(const head_ties *t, const char *folder, const char *text_prefix, bool *out)
{
    hf_folder f = {0};
    char name[64];
    *out = t->top || t->text;
    if (!*out || !hf_has_weights(folder))
        return ST_OK;
    TRY(hf_folder_open(folder, &f));
    snprintf(name, sizeof name, "%sembed_tokens.weight", text_prefix);
    const st_tensor *head = hf_folder_find(&f, "lm_head.weight");
    const st_tensor *embedding = hf_folder_find(&f, name);
    if (head) /* if the embedding is missing, loading the folder fails and names it */
        *out = t->top && (!embedding || same_values(head, embedding));
    hf_folder_close(&f);
    return ST_OK;
}
