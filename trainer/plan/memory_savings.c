/* memory_savings.c: see memory_savings.h. */
#include "trainer/plan/memory_savings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainer/checkpoint/save/snapshot.h"
#include "trainer/plan/memory_search.h"

enum { LEAST_RANK = 4 };
static const double LEAST_SAVING = 0.99; /* of the bytes, what must be left */

static void name_option(savings *all, const char *words)
{
    const size_t length = strlen(all->text);
    snprintf(all->text + length, SAVINGS_TEXT - length, "%s%s", length ? ", " : "", words);
}

/* Names an option, in place of the value of it that has been named. */
static void name_instead(savings *all, const char *key, const char *words)
{
    char rest[SAVINGS_TEXT];
    char *before = strstr(all->text, key);
    if (!before) {
        name_option(all, words);
        return;
    }
    snprintf(rest, sizeof rest, "%s", before + strcspn(before, ","));
    snprintf(before, SAVINGS_TEXT - (size_t)(before - all->text), "%s%s", words, rest);
}

static void name_rank(savings *all)
{
    char words[48];
    snprintf(words, sizeof words, "lora.rank %" PRId64, all->options.lora_rank);
    name_instead(all, "lora.rank ", words);
}

/* Each of these functions adds one option. They return false if it is set already, cannot be set,
 * or saves nothing here. */

static bool drop_copies(savings *all)
{
    if (!plan_device_is_cpu(all->in->device) || !snapshot_wanted(&all->options))
        return false;
    all->options.checkpoint_memory_folder = "";
    name_option(all, "checkpoint.memory_folder \"\"");
    return true;
}

static bool shrink_moments(savings *all)
{
    if (all->options.optimizer_states == STATES_INT8)
        return false;
    all->options.optimizer_states = STATES_INT8;
    name_option(all, "optimizer.states int8");
    return true;
}

/* The CPU keeps float32 in any case. */
static bool shrink_masters(savings *all)
{
    if (plan_device_is_cpu(all->in->device) || all->options.training_master == MASTER_BF16)
        return false;
    all->options.training_master = MASTER_BF16;
    name_option(all, "training.master bf16");
    return true;
}

static bool update_in_backward(savings *all)
{
    const layout *degrees = all->in->layout;
    if (all->options.optimizer_in_backward || degrees->pipeline > 1)
        return false;
    all->options.optimizer_in_backward = true;
    all->options.training_global_batch_size =
        all->options.training_local_batch_size * layout_consumers(degrees);
    name_option(all, "optimizer.in_backward true");
    return true;
}

/* The CPU's memory is the host's. Moments of adapters are small, and their base is not. */
static bool rest_on_host(savings *all)
{
    const int was = all->options.memory_host;
    const bool both = was == HOST_FROZEN || all->options.lora_rank > 0;
    const int wanted = both ? HOST_BOTH : HOST_MOMENTS;
    if (plan_device_is_cpu(all->in->device) || was == wanted || was == HOST_BOTH)
        return false;
    all->options.memory_host = wanted;
    name_option(all, both ? "memory.host both" : "memory.host moments");
    return true;
}

/* Adapters that are merged into whole checkpoints need the base as it is. */
static bool shrink_base(savings *all)
{
    static const char *const names[] = {[LORA_BASE_INT8] = "int8", [LORA_BASE_NF4] = "nf4"};
    char words[32];
    if (all->options.lora_rank == 0 || all->options.checkpoint_model == CHECKPOINT_MODEL_END ||
        all->options.checkpoint_model == CHECKPOINT_MODEL_ALWAYS ||
        all->options.lora_base == LORA_BASE_NF4)
        return false;
    all->options.lora_base =
        all->options.lora_base == LORA_BASE_BF16 ? LORA_BASE_INT8 : LORA_BASE_NF4;
    snprintf(words, sizeof words, "lora.base %s", names[all->options.lora_base]);
    name_instead(all, "lora.base ", words);
    return true;
}

static bool halve_rank(savings *all)
{
    if (all->options.lora_rank < 2 * LEAST_RANK)
        return false;
    all->options.lora_rank /= 2;
    name_rank(all);
    return true;
}

static bool (*const steps[])(savings *) = {
    drop_copies,  shrink_moments, shrink_masters, shrink_base, shrink_base, update_in_backward,
    rest_on_host, halve_rank,     halve_rank,     halve_rank,  halve_rank,  halve_rank,
    halve_rank,   halve_rank,     halve_rank,     halve_rank,  halve_rank /* from 4,096 on */};
enum { STEPS = sizeof steps / sizeof *steps };

status savings_begin(const plan_input *in, savings *out)
{
    *out = (savings){.in = in};
    return conf_copy(in->conf, &out->options);
}

bool savings_adapters(savings *all, int64_t rank)
{
    if (all->options.lora_rank > 0)
        return false;
    all->options.lora_rank = rank;
    name_rank(all);
    return true;
}

static status make_trial(const savings *all, plan_trial *out)
{
    TRY(plan_trial_begin(&all->options, out));
    TRY(plan_trial_make(out, all->in->dims, all->in->device));
    out->in.seq_len = all->in->seq_len;
    out->in.patch_budget = all->in->patch_budget;
    out->in.shapes = all->in->shapes;
    return ST_OK;
}

/* *out_host_has: whether the host has the memory that memory.host takes of it for its ranks. */
static status row_bytes(const plan_input *in, int64_t *out, bool *out_host_has)
{
    memory_fit row = {.mode = AC_FULL,
                      .rows = 1,
                      .seq_len = memory_seq_len(in),
                      .patch_budget = memory_patch_budget(in)};
    TRY(memory_fit_bytes(in, &row));
    *out = row.total;
    const double wanted = (double)in->device->host_ranks * (double)row.resting;
    *out_host_has = in->device->host <= 0 || wanted <= in->device->host;
    return ST_OK;
}

/* Whether what was added last goes with the other options and saves enough to be named. */
static status judge_trial(savings *all, plan_trial *inout, bool *out_kept)
{
    int64_t bytes;
    bool host_has;
    *out_kept = false;
    const status st = make_trial(all, inout);
    if (st == ST_CONFIG) {
        status_clear();
        return ST_OK;
    }
    TRY(st);
    if (all->bytes == 0)
        TRY(row_bytes(all->in, &all->bytes, &host_has));
    TRY(row_bytes(&inout->in, &bytes, &host_has));
    *out_kept = host_has && (double)bytes < LEAST_SAVING * (double)all->bytes;
    if (*out_kept)
        all->bytes = bytes;
    return ST_OK;
}

status savings_add(savings *all, plan_trial *inout, bool *out_added)
{
    if (!inout->registry && all->text[0]) { /* adapters alone */
        *out_added = true;
        bool host_has;
        TRY(make_trial(all, inout));
        return row_bytes(&inout->in, &all->bytes, &host_has);
    }
    *out_added = false;
    while (!*out_added && all->step < STEPS) {
        savings before = *all;
        if (!steps[all->step++](all))
            continue;
        plan_trial_end(inout);
        TRY(judge_trial(all, inout, out_added));
        if (!*out_added) {
            before.step = all->step;
            before.bytes = all->bytes;
            *all = before;
            plan_trial_end(inout);
        }
    }
    return *out_added || inout->registry || !all->text[0] ? ST_OK : make_trial(all, inout);
}

void savings_end(savings *all)
{
    conf_done(&all->options);
}
