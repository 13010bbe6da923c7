/* conf_check.c: rules between options. What depends on ranks is the trainer's to check. */
#include "common/conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status bad(const conf *c, const char *text)
{
    return FAIL_IN(ST_CONFIG, conf_place(c), "%s", text);
}

/* A list of these words (parts: ends with NULL) or one of the two others. */
static status check_list(const conf *c, const char *key, const char *text, const char *one,
                         const char *other, const char *const *parts)
{
    char words[128] = "";
    if (strcmp(text, one) == 0 || strcmp(text, other) == 0)
        return ST_OK;
    for (const char *p = text;; p++) {
        p += strspn(p, " ");
        size_t n = strcspn(p, ", ");
        bool known = false;
        for (const char *const *w = parts; *w; w++)
            known |= strlen(*w) == n && strncmp(p, *w, n) == 0;
        p += n + strspn(p + n, " ");
        if (known && !*p)
            return ST_OK;
        if (!known || *p != ',')
            break;
    }
    for (const char *const *w = parts; *w; w++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", *words ? ", " : "",
                 *w);
    return FAIL_IN(ST_CONFIG, conf_place(c), "%s: \"%.100s\" is not %s, %s, or a list of %s", key,
                   text, one, other, words);
}

static status check_scope(const conf *c)
{
    static const char *const parts[] = {"attn", "router", "experts", "vision", NULL};
    return check_list(c, "cuda_graph.scope", c->cuda_graph_scope, "off", "step", parts);
}

static status check_recompute(const conf *c)
{
    static const char *const parts[] = {"qkv", "attention", "proj", "fc1", "fc2", NULL};
    static const char *const vision[] = {"qkv", "attention", "proj", "fc1", NULL};
    const char *option = c->activation_checkpoint_selective_ac_option;
    if (strcmp(option, "op") != 0 &&
        (strspn(option, "0123456789") != strlen(option) || strlen(option) > 9 || atoi(option) < 1))
        return FAIL_IN(ST_CONFIG, conf_place(c),
                       "activation_checkpoint.selective_ac_option: \"%.100s\" is neither op nor a "
                       "number of layers from 1",
                       option);
    TRY(check_list(c, "activation_checkpoint.save", c->activation_checkpoint_save, "auto", "none",
                   parts));
    return check_list(c, "activation_checkpoint.vision_save", c->activation_checkpoint_vision_save,
                      "auto", "none", vision);
}

/* Values that a rank alone has made are no training: nothing may be kept that looks like one. */
static status check_replay(const conf *c)
{
    if (c->comm_engine != ENGINE_REPLAY)
        return ST_OK;
    if (c->checkpoint_enable)
        return bad(c, "comm.engine replay: a rank without the others trains no model, so nothing "
                      "is kept of it: checkpoint.enable must be false");
    if (c->metrics_enable_tensorboard)
        return bad(c, "comm.engine replay: TensorBoard's events have no place to say that it is "
                      "a model: metrics.enable_tensorboard must be false");
    if (c->parallelism_pipeline_parallel_degree > 1)
        return bad(c, "comm.engine replay: a stage waits for other stages' computing, which one "
                      "rank does not know: parallelism.pipeline_parallel_degree must be 1");
    if (c->comm_expert_exchange == EXPERT_EXCHANGE_DEVICE)
        return bad(c, "comm.engine replay: experts' slots go by load and store between ranks, and "
                      "the others have no memory: comm.expert_exchange must be auto or host");
    return ST_OK;
}

status conf_check(const conf *c)
{
    TRY(check_scope(c));
    TRY(check_recompute(c));
    TRY(check_replay(c));
    if (c->training_steps == 0 && c->training_epochs == 0)
        return bad(c, "training.steps 0 means until training.epochs ends, but that is 0 too: set "
                      "one of them");
    if (c->image_min_pixels && c->image_max_pixels && c->image_min_pixels > c->image_max_pixels)
        return bad(c, "image.min_pixels is larger than image.max_pixels");
    if (!*c->job_dump_folder)
        return bad(c, "job.dump_folder is empty; name a folder, for example outputs");
    if (!*c->data_split || !*c->eval_split)
        return bad(c, "data.split and eval.split must name a split, for example train and val");
    if (c->parallelism_data_parallel_shard_degree == 0)
        return bad(c,
                   "parallelism.data_parallel_shard_degree: 0 ranks; use -1 for all that remain");
    if (c->parallelism_expert_tensor_parallel_degree != 1 &&
        c->parallelism_expert_tensor_parallel_degree != c->parallelism_tensor_parallel_degree)
        return bad(c, "parallelism.expert_tensor_parallel_degree must be 1 or equal "
                      "parallelism.tensor_parallel_degree");
    if (!*c->checkpoint_folder || c->checkpoint_folder[0] == '/' ||
        strstr(c->checkpoint_folder, ".."))
        return bad(c, "checkpoint.folder must be a folder inside job.dump_folder, for example "
                      "checkpoint");
    return ST_OK;
}
