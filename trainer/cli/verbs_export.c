/* verbs_export.c: trainer export: reads a Hugging Face folder, checks it and writes it again; or
 * reads a checkpoint of what was trained alone and its base, with --merge one of adapters. The
 * result is written under another name and put in its place when it is whole, so that an export
 * that is interrupted leaves nothing that looks like a model. */
#include <stdio.h>
#include <string.h>

#include "common/base/digits.h"

#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/cli/export_whole.h"
#include "trainer/cli/verbs.h"
#include "trainer/ops/open.h"

typedef struct export_args {
    const char *model, *out, *base;
    bool merge;
    hf_export_options how;
} export_args;

static bool read_layout(const char *word, hf_export_options *options)
{
    static const struct {
        const char *word;
        expert_layout layout;
    } layouts[] = {
        {"published", EXPERTS_FUSED}, {"v5", EXPERTS_EXCHANGED}, {"per-expert", EXPERTS_SEPARATE}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (strcmp(word, layouts[i].word) == 0) {
            options->choose_layout = true;
            options->layout = layouts[i].layout;
            return true;
        }
    }
    return false;
}

static bool read_dtype(const char *word, hf_export_options *options)
{
    bool f32 = strcmp(word, "f32") == 0;
    options->dtype = f32 ? HF_EXPORT_F32 : HF_EXPORT_BF16;
    return f32 || strcmp(word, "bf16") == 0;
}

static status read_args(int argc, char **argv, export_args *args)
{
    const char *dtype, *arrangement, *bytes;
    *args = (export_args){.how.dtype = HF_EXPORT_AS_SOURCE};
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(verb_take(&argc, argv, "--model", &args->model));
    TRY(verb_take(&argc, argv, "--out", &args->out));
    TRY(verb_take(&argc, argv, "--base", &args->base));
    args->merge = verb_take_flag(&argc, argv, "--merge");
    TRY(verb_take(&argc, argv, "--dtype", &dtype));
    TRY(verb_take(&argc, argv, "--layout", &arrangement));
    TRY(verb_take(&argc, argv, "--shard-bytes", &bytes));
    TRY(verb_all_taken(argc, argv));
    if (!args->model || !args->out)
        return FAIL(ST_USAGE, "export needs --model DIR and --out DIR; see trainer export --help");
    if (dtype && !read_dtype(dtype, &args->how))
        return FAIL(ST_USAGE, "--dtype %s: expected bf16 or f32", dtype);
    if (arrangement && !read_layout(arrangement, &args->how))
        return FAIL(ST_USAGE, "--layout %s: expected published, v5 or per-expert", arrangement);
    if (bytes)
        TRY(verb_number("--shard-bytes", bytes, 1, INT64_MAX, &args->how.shard_bytes));
    return verb_may_write(args->out, overwrite || folder_is_unfinished(args->out));
}

static status write_whole(const params *registry, stream *queue, const model_dims *dims,
                          const char *out, const hf_export_options *options)
{
    char aside[STATUS_PATH_MAX];
    TRY(folder_aside(out, aside));
    status st = hf_export(registry, queue, dims, aside, options);
    if (st == ST_OK)
        return folder_put(aside, out);
    const status_note why = *status_last();
    if (folder_remove(aside) != ST_OK)
        log_warn("the partly written export cannot be deleted: %s", status_text());
    status_set(&why);
    return st;
}

static void print_sum(const char *out, const params *registry, const hf_export_sum *sum)
{
    char parameters[DIGITS_TEXT], tensors[DIGITS_TEXT], bytes[DIGITS_TEXT];
    printf("%s: %s parameters in %s tensors, %s bytes in %lld file%s\n", out,
           digits_with_commas(registry->total, parameters),
           digits_with_commas(sum->tensors, tensors), digits_with_commas(sum->bytes, bytes),
           (long long)sum->files, sum->files == 1 ? "" : "s");
}

/* Refuses a layout that a version of transformers opens with random experts in place of those in
 * the file (tests/golden/layouts.json). */
static status check_layout(const hf_export_options *how, const model_dims *dims)
{
    const bool vision = dims->vision.depth > 0;
    if (!how->choose_layout || dims->text.experts == 0)
        return ST_OK;
    if (vision && how->layout == EXPERTS_SEPARATE)
        return FAIL(ST_USAGE,
                    "--layout per-expert: transformers opens no model with vision in this "
                    "form, and would give it random experts; use published, or v5 for "
                    "the 5 series alone");
    if (!vision && how->layout == EXPERTS_EXCHANGED)
        return FAIL(ST_USAGE, "--layout v5: transformers 4.57 would give a text-only model in this "
                              "form random experts; use published, which every version opens");
    return ST_OK;
}

/* parts: a checkpoint of what was trained alone; NULL: the folder is written as it is. */
static status export_params(const export_args *args, const char *folder, const model_dims *dims,
                            const whole_source *parts, params *registry, stream *queue)
{
    hf_export_options options = args->how;
    hf_export_sum sum = {0};
    const bool as_is = options.dtype == HF_EXPORT_AS_SOURCE && !options.choose_layout;
    options.source = folder;
    options.sum = &sum;
    options.frozen_is_source = parts != NULL;
    if (options.choose_layout && options.layout == EXPERTS_FUSED)
        options.layout = params_published(registry);
    status st =
        parts ? whole_load(parts, as_is, registry, queue) : params_alloc(registry, queue, false);
    if (st == ST_OK && !parts)
        st = hf_load(registry, queue, folder);
    if (st == ST_OK)
        st = write_whole(registry, queue, dims, args->out, &options);
    if (st == ST_OK)
        print_sum(args->out, registry, &sum);
    params_release(registry, queue);
    return st;
}

/* Opens the checkpoint at `folder` if a model must be made of it and its base, and puts that base's
 * folder in its place. */
static status open_parts(const export_args *args, char folder[STATUS_PATH_MAX], whole_source *out,
                         bool *out_opened)
{
    *out_opened = args->merge;
    if (!args->merge)
        TRY(whole_is_wanted(folder, out_opened));
    if (args->base && !*out_opened)
        return FAIL(ST_USAGE, "--base names the base of a checkpoint that has what was trained "
                              "alone, or of adapters with --merge; this is no such checkpoint");
    if (!*out_opened)
        return ST_OK;
    TRY(whole_open(folder, args->base, args->merge, out));
    snprintf(folder, STATUS_PATH_MAX, "%s", out->base);
    return ST_OK;
}

status verb_export(int argc, char **argv)
{
    export_args args;
    model_dims dims;
    device *dev = NULL;
    stream *queue = NULL;
    params *registry = NULL;
    status st;
    char folder[STATUS_PATH_MAX];
    whole_source parts = {0};
    bool has_parts;
    TRY(read_args(argc, argv, &args));
    TRY(model_files_find(args.model, folder));
    TRY(open_parts(&args, folder, &parts, &has_parts));
    TRY_OR(done, dims_load(folder, &dims));
    TRY_OR(done, check_layout(&args.how, &dims));
    TRY_OR(done, device_open(BACKEND_CPU, &(device_options){0}, &dev));
    TRY_OR(done, dev->backend->stream_new(dev, &queue));
    TRY_OR(done, params_new(&dims, &registry));
    st = export_params(&args, folder, &dims, has_parts ? &parts : NULL, registry, queue);
done:
    whole_close(&parts);
    params_free(&registry);
    if (queue)
        dev->backend->stream_free(&queue);
    device_close(&dev);
    return st;
}
