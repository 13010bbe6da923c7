/* verbs_export.c: trainer export: a Hugging Face folder read, checked and written again. */
#include <string.h>

#include "common/conf.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/verbs.h"

typedef struct export_args {
    const char *model, *out;
    int dtype;
} export_args;

static status read_args(int argc, char **argv, export_args *a)
{
    *a = (export_args){.dtype = HF_EXPORT_AS_SOURCE};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return FAIL(ST_USAGE, "%s needs a value", argv[i]);
        if (strcmp(argv[i], "--model") == 0)
            a->model = value;
        else if (strcmp(argv[i], "--out") == 0)
            a->out = value;
        else if (strcmp(argv[i], "--dtype") == 0 && strcmp(value, "bf16") == 0)
            a->dtype = HF_EXPORT_BF16;
        else if (strcmp(argv[i], "--dtype") == 0 && strcmp(value, "f32") == 0)
            a->dtype = HF_EXPORT_F32;
        else
            return FAIL(ST_USAGE, "export: %s %s is not understood", argv[i], value);
    }
    if (!a->model || !a->out)
        return FAIL(ST_USAGE, "usage: trainer export --model DIR --out DIR [--dtype bf16|f32]");
    return ST_OK;
}

static status export_params(const export_args *a, const model_dims *d, params *p, stream *s)
{
    hf_export_options o = {.source = a->model, .dtype = a->dtype};
    TRY(params_alloc(p, s, false));
    status st = hf_load(p, s, d, a->model);
    if (st == ST_OK)
        st = hf_export(p, s, d, a->out, &o);
    params_release(p, s);
    return st;
}

status verb_export(int argc, char **argv)
{
    export_args a;
    model_dims d;
    device *dev = NULL;
    stream *s = NULL;
    params *p = NULL;
    status st;
    TRY(read_args(argc, argv, &a));
    TRY(dims_load(a.model, &d));
    TRY(device_open(BACKEND_CPU, 0, 0, &dev));
    TRY_OR(done, dev->v->stream_new(dev, &s));
    TRY_OR(done, params_new(&d, &p));
    st = export_params(&a, &d, p, s);
done:
    params_free(&p);
    if (s)
        dev->v->stream_free(&s);
    device_close(&dev);
    return st;
}
