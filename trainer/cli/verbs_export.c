/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_export.c: trainer export: reads a Hugging Face folder, checks it and writes it again; or
 * makes a whole model of a checkpoint that has only what was trained, and of the base that it
 * names, with --merge one of adapters. An export that keeps the base's layout and dtypes needs the
 * memory of what was trained, however large the base is. The result is written under another name
 * and put in its place when it is whole, so that an export that is interrupted leaves nothing that
 * looks like a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/checkpoint/state/base.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/cli/verbs.h"
#include "trainer/model/dims/hf_folder.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/params.h"
#include "trainer/ops/open.h"

/* A checkpoint of what was trained. */
typedef struct whole_source {
    char training[STATUS_PATH_MAX]; /* its folder training/ */
    char base[STATUS_PATH_MAX];     /* the folder or preset of the base */
    run_base was;                   /* the base that it was trained on */
} whole_source;

/* Finds a checkpoint: this folder, or the newest one in a folder of them. out: its path; "": there
 * is none. */
static status find_checkpoint(const char *folder, char out[STATUS_PATH_MAX])
{
    int64_t *step = NULL, count = 0;
    TRY(hf_path(out, folder, FOLDER_TRAINING));
    if (file_is_folder(out)) {
        snprintf(out, STATUS_PATH_MAX, "%s", folder);
        return ST_OK;
    }
    out[0] = 0;
    TRY(folder_steps(folder, &step, &count));
    const status st = count > 0 ? folder_step_path(out, folder, step[count - 1], NULL) : ST_OK;
    free(step);
    return st;
}

/* *out: whether this folder has no model, but is a checkpoint without adapters that names its base,
 * or holds such. ST_BAD_INPUT, ST_IO: its base.json cannot be read. */
static status whole_is_wanted(const char *folder, bool *out)
{
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
    run_base was = {0};
    bool there;
    *out = false;
    if (!file_is_folder(folder) || hf_has_weights(folder))
        return ST_OK;
    TRY(find_checkpoint(folder, path));
    if (!path[0])
        return ST_OK;
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(base_read(training, &was, &there));
    *out = there && was.lora.rank == 0 && !hf_has_weights(path);
    base_done(&was);
    return ST_OK;
}

/* Finds the folder or preset of the base. */
static status find_base(const char *base, whole_source *inout)
{
    const char *model = base ? base : inout->was.model;
    const bool preset = !strchr(model, '/');
    if (!base && !preset && !file_is_folder(model))
        return FAIL_IN(ST_NO_INPUT, inout->training,
                       "base.json says that its base is in %s, and this is no folder now: name "
                       "the folder where it is with --base",
                       model);
    return model_files_find(model, inout->base);
}

/* Opens a checkpoint, and checks every byte of it: a folder step-N, or one that holds several, of
 * which the newest is taken. base: the folder of the base, NULL: where it was when the run was
 * made. adapters: there must be some. ST_BAD_INPUT: this is no checkpoint, or none of adapters, or
 * it is damaged. ST_NO_INPUT: the base is not there. */
static status whole_open(const char *checkpoint, const char *base, bool adapters, whole_source *out)
{
    char path[STATUS_PATH_MAX];
    whole_source source = {0};
    bool there;
    TRY(find_checkpoint(checkpoint, path));
    if (!path[0])
        return FAIL_IN(ST_BAD_INPUT, checkpoint,
                       "this is no checkpoint: it has no folder " FOLDER_TRAINING
                       ", and holds no step-N");
    TRY(folder_check(path, 0, 1));
    TRY(hf_path(source.training, path, FOLDER_TRAINING));
    TRY(base_read(source.training, &source.was, &there));
    status st = ST_OK;
    if (!there || (adapters && source.was.lora.rank == 0))
        st = FAIL_IN(ST_BAD_INPUT, checkpoint,
                     "this is no checkpoint of adapters: leave --merge out");
    if (st == ST_OK)
        st = find_base(base, &source);
    if (st == ST_OK)
        *out = source;
    else
        base_done(&source.was);
    return st;
}

static void whole_close(whole_source *source)
{
    base_done(&source->was);
}

/* Makes the registry that of the run: with its adapters, or with the rows of its base frozen. */
static status set_trained(const whole_source *source, params *registry)
{
    const run_base *was = &source->was;
    int64_t found = 0;
    registry->convert_states = true; /* of values alone: there is no room for moments */
    if (was->lora.rank)
        return lora_add(registry, was->lora, was->lora_targets);
    for (int64_t i = 0; i < registry->count && found < was->count; i++) {
        param *row = &registry->list[i];
        row->frozen = strcmp(row->name, was->rows[found].name) == 0;
        found += row->frozen;
    }
    if (found < was->count)
        return FAIL_IN(ST_CONFIG, source->training,
                       "its base has a tensor %s, and the model in %s has none: name the base "
                       "that it was trained on with --base",
                       was->rows[found].name, source->base);
    return ST_OK;
}

/* Leaves the rows of the base without memory. */
static void leave_out(params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        registry->list[i].elsewhere = param_in_base(&registry->list[i]);
}

/* Allocates the rows, and loads or draws those of the base unless they stay in its files. */
static status load_base(const whole_source *source, bool have, bool as_is, params *registry,
                        stream *queue)
{
    bool has_frozen;
    TRY(train_state_has_frozen(registry, source->training, &has_frozen));
    const bool stays = have && as_is && !has_frozen && !source->was.lora.dora;
    if (stays)
        leave_out(registry);
    TRY(params_alloc(registry, queue, false));
    if (!have)
        return params_init(registry, queue, (uint64_t)source->was.seed);
    return stays ? ST_OK : hf_load(registry, queue, source->base);
}

/* Gives a registry without adapters, and without memory, what the checkpoint trained, and all rows
 * their values. as_is: tensors keep the base's layout and dtypes, so that an export takes frozen
 * values from the files, and they are not loaded. ST_CONFIG: the base is another. */
static status whole_load(const whole_source *source, bool as_is, params *registry, stream *queue)
{
    const comm alone = comm_alone("export");
    const run_base *was = &source->was;
    const bool have = file_is_folder(source->base) && hf_has_weights(source->base);
    run_base now = {0};
    if (was->form != WEIGHT_PLAIN)
        log_info("the adapters were trained beside a base in %s; they are merged into the base as "
                 "it is in %s, which is not quantised",
                 base_form_name(was->form), source->base);
    TRY(set_trained(source, registry));
    TRY(base_find(registry, have ? source->base : NULL, was->seed, &alone, &now));
    snprintf(now.model, sizeof now.model, "%s", source->base);
    status st = base_check(&now, was, true, source->training);
    base_done(&now);
    if (st == ST_OK)
        st = load_base(source, have, as_is, registry, queue);
    return st == ST_OK ? train_state_load(registry, queue, source->training) : st;
}

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
