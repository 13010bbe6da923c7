/* verbs_export.c: trainer export: reads a Hugging Face folder, checks it and writes it again. */
#include <string.h>

#include "common/model_folder/model_files.h"
#include "common/program/verb.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/cli/verbs.h"
#include "trainer/ops/open.h"

typedef struct export_args {
    const char *model, *out;
    hf_export_options how;
} export_args;

static bool read_layout(const char *word, hf_export_options *o)
{
    static const struct {
        const char *word;
        expert_layout layout;
    } layouts[] = {
        {"published", EXPERTS_FUSED}, {"v5", EXPERTS_EXCHANGED}, {"per-expert", EXPERTS_SEPARATE}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (strcmp(word, layouts[i].word) == 0) {
            o->choose_layout = true;
            o->layout = layouts[i].layout;
            return true;
        }
    }
    return false;
}

static bool read_dtype(const char *word, hf_export_options *o)
{
    bool f32 = strcmp(word, "f32") == 0;
    o->dtype = f32 ? HF_EXPORT_F32 : HF_EXPORT_BF16;
    return f32 || strcmp(word, "bf16") == 0;
}

static status read_args(int argc, char **argv, export_args *a)
{
    const char *dtype, *arrangement, *bytes;
    *a = (export_args){.how.dtype = HF_EXPORT_AS_SOURCE};
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(verb_take(&argc, argv, "--model", &a->model));
    TRY(verb_take(&argc, argv, "--out", &a->out));
    TRY(verb_take(&argc, argv, "--dtype", &dtype));
    TRY(verb_take(&argc, argv, "--layout", &arrangement));
    TRY(verb_take(&argc, argv, "--shard-bytes", &bytes));
    TRY(verb_all_taken(argc, argv));
    if (!a->model || !a->out)
        return FAIL(ST_USAGE, "export needs --model DIR and --out DIR; see trainer export --help");
    if (dtype && !read_dtype(dtype, &a->how))
        return FAIL(ST_USAGE, "--dtype %s: expected bf16 or f32", dtype);
    if (arrangement && !read_layout(arrangement, &a->how))
        return FAIL(ST_USAGE, "--layout %s: expected published, v5 or per-expert", arrangement);
    if (bytes)
        TRY(verb_number("--shard-bytes", bytes, 1, INT64_MAX, &a->how.shard_bytes));
    return verb_may_write(a->out, overwrite);
}

static status export_params(const export_args *a, const char *folder, const model_dims *d,
                            params *p, stream *s)
{
    hf_export_options o = a->how;
    o.source = folder;
    if (o.choose_layout && o.layout == EXPERTS_FUSED)
        o.layout = params_published(p);
    TRY(params_alloc(p, s, false));
    status st = hf_load(p, s, folder);
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
    char folder[STATUS_PATH_MAX];
    TRY(read_args(argc, argv, &a));
    TRY(model_files_find(a.model, folder));
    TRY(dims_load(folder, &d));
    TRY(device_open(BACKEND_CPU, &(device_options){0}, &dev));
    TRY_OR(done, dev->backend->stream_new(dev, &s));
    TRY_OR(done, params_new(&d, &p));
    st = export_params(&a, folder, &d, p, s);
done:
    params_free(&p);
    if (s)
        dev->backend->stream_free(&s);
    device_close(&dev);
    return st;
}
