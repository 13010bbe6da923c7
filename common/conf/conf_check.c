/* SPDX-License-Identifier: Apache-2.0 */
/* conf_check.c: rules between options, checked once all of them are loaded. Rules that depend on
 * the number of ranks or on the model are checked by the trainer (trainer/parallel/layout.c). */
#include "common/conf/conf.h"
#include "common/conf/rank_lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status bad(const conf *options, const char *text)
{
    return FAIL_IN(ST_CONFIG, conf_place(options), "%s", text);
}

/* Accepts `one`, `other`, or a comma-separated list of the words in `parts`,
 * which ends with NULL. */
static status check_list(const conf *options, const char *key, const char *text, const char *one,
                         const char *other, const char *const *parts)
{
    char words[128] = "";
    if (strcmp(text, one) == 0 || strcmp(text, other) == 0)
        return ST_OK;
    for (const char *at = text;; at++) {
        at += strspn(at, " ");
        size_t count = strcspn(at, ", ");
        bool known = false;
        for (const char *const *word = parts; *word; word++)
            known |= strlen(*word) == count && strncmp(at, *word, count) == 0;
        at += count + strspn(at + count, " ");
        if (known && !*at)
            return ST_OK;
        if (!known || *at != ',')
            break;
    }
    for (const char *const *word = parts; *word; word++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", *words ? ", " : "",
                 *word);
    return FAIL_IN(ST_CONFIG, conf_place(options), "%s: \"%.100s\" is not %s, %s, or a list of %s",
                   key, text, one, other, words);
}

static status check_scope(const conf *options)
{
    static const char *const parts[] = {"attn", "router", "experts", "vision", NULL};
    return check_list(options, "cuda_graph.scope", options->cuda_graph_scope, "off", "step", parts);
}

static status check_recompute(const conf *options)
{
    static const char *const parts[] = {"qkv", "attention", "proj", "fc1", "fc2", NULL};
    const char *option = options->activation_checkpoint_selective_ac_option;
    if (strcmp(option, "op") != 0 &&
        (strspn(option, "0123456789") != strlen(option) || strlen(option) > 9 || atoi(option) < 1))
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "activation_checkpoint.selective_ac_option: \"%.100s\" is neither op nor a "
                       "whole number of at least 1",
                       option);
    return check_list(options, "activation_checkpoint.save", options->activation_checkpoint_save,
                      "auto", "none", parts);
}

static status check_length(const conf *options)
{
    if (options->training_steps == 0 && options->training_epochs == 0)
        return bad(options,
                   "training.steps is 0, so training.epochs decides when the run ends, but it "
                   "is 0 too; set one of them");
    return ST_OK;
}

static status check_pixels(const conf *options)
{
    if (options->image_min_pixels && options->image_max_pixels &&
        options->image_min_pixels > options->image_max_pixels)
        return bad(options, "image.min_pixels is larger than image.max_pixels");
    return ST_OK;
}

static status check_dump_folder(const conf *options)
{
    if (!*options->job_dump_folder)
        return bad(options, "job.dump_folder is empty; name a folder, for example outputs");
    return ST_OK;
}

static status check_splits(const conf *options)
{
    if (!*options->data_split || !*options->eval_split)
        return bad(options,
                   "data.split and eval.split must name a split, for example train and val");
    return ST_OK;
}

static status check_shards(const conf *options)
{
    if (options->parallelism_data_parallel_shard_degree == 0)
        return bad(options,
                   "parallelism.data_parallel_shard_degree cannot be 0; use -1 for all ranks that "
                   "the other degrees leave");
    return ST_OK;
}

static status check_host(const conf *options)
{
    if ((options->memory_host == HOST_FROZEN || options->memory_host == HOST_BOTH) &&
        options->parallelism_fsdp_reshard_after_forward == RESHARD_NEVER)
        return bad(options,
                   "parallelism.fsdp_reshard_after_forward never keeps every weight on the device, "
                   "and memory.host frozen lets them rest on the host: set one of them otherwise");
    return ST_OK;
}

static status check_expert_tensor(const conf *options)
{
    if (options->parallelism_expert_tensor_parallel_degree != 1 &&
        options->parallelism_expert_tensor_parallel_degree !=
            options->parallelism_tensor_parallel_degree)
        return bad(options, "parallelism.expert_tensor_parallel_degree must be 1 or equal "
                            "parallelism.tensor_parallel_degree");
    return ST_OK;
}

static status check_ranks(const conf *options)
{
    TRY(rank_ranges_check(options->prepd_ranks, "prepd.ranks", conf_place(options)));
    return rank_endpoints_check(options->prepd_rank_endpoints, "prepd.rank_endpoints",
                                conf_place(options));
}

/* Whether the run writes a whole model although it has adapters. */
static bool merges(const conf *options)
{
    return options->lora_rank > 0 && (options->checkpoint_model == CHECKPOINT_MODEL_END ||
                                      options->checkpoint_model == CHECKPOINT_MODEL_ALWAYS);
}

static status check_dora(const conf *options)
{
    if (!options->lora_dora || !merges(options))
        return ST_OK;
    return bad(options, "checkpoint.model: with lora.dora the lengths of the merged rows come from "
                        "the whole base, which only trainer export --merge reads; leave "
                        "checkpoint.model at auto");
}

static status check_lora_base(const conf *options)
{
    if (options->lora_base == LORA_BASE_BF16)
        return ST_OK;
    if (options->lora_rank == 0)
        return bad(options,
                   "lora.base: only a frozen base can be kept in 8 or 4 bits, and lora.rank is 0, "
                   "so the model itself is trained; set lora.rank, or lora.base to bf16");
    if (merges(options))
        return bad(options,
                   "checkpoint.model: adapters are merged into the weights of model.path as they "
                   "are, and this run has these only in the fewer bits of lora.base; leave "
                   "checkpoint.model at auto, and merge with trainer export --merge");
    return ST_OK;
}

status conf_check_all(const conf *options, mistakes *wrong)
{
    static status (*const rules[])(const conf *) = {
        check_scope,  check_recompute, check_length,        check_pixels,
        check_splits, check_shards,    check_expert_tensor, check_dump_folder,
        check_ranks,  check_lora_base, check_host,          check_dora,
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        TRY(mistakes_add(wrong, rules[i](options)));
    return ST_OK;
}

status conf_check(const conf *options)
{
    mistakes wrong = {0};
    status st = conf_check_all(options, &wrong);
    if (st == ST_OK)
        st = mistakes_first(&wrong);
    mistakes_done(&wrong);
    return st;
}
