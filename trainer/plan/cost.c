/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c: divides work by rates and traffic by links, and puts the parts of a step together. */
#include "trainer/plan/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/device/choices.h"
#include "trainer/model/params/params.h"
#include "trainer/ops/state_codes.h"
#include "trainer/plan/matrix_work.h"
#include "trainer/plan/row_work.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/plan/received.h"
#include "trainer/plan/layout_plan.h"

enum {
    ACT = 2, /* bytes of bf16 */
    ACC = 4, /* of fp32 */
};

/* Bytes of one moment of a parameter. */
static double moment_bytes(const conf *options)
{
    return options->optimizer_states == STATES_INT8 ? 1.0 + (double)ACC / STATE_BLOCK : ACC;
}

/* Bytes that the update of a parameter moves: the gradient is read twice, for the norm and by
 * AdamW, which reads and writes the value and both moments, and writes the compute copy if that is
 * another array. Moments of 8 bits have a scale for every block. */
static double update_bytes(const conf *options)
{
    const double value = options->training_master == MASTER_BF16 ? 2.0 * ACT : 2.0 * ACC + ACT;
    return 2.0 * ACC + value + 4.0 * moment_bytes(options);
}

/* How rank 0's group is spread over the nodes. */
typedef struct reach {
    int ranks, near; /* near: how many are on rank 0's node, itself included */
} reach;

static status reach_of(const layout *degrees, int per_node, reach out[MESH_GROUPS])
{
    int *member = malloc((size_t)degrees->world * sizeof *member);
    if (!member)
        return FAIL(ST_NO_MEMORY, "no memory for a layout of %" PRId64 " ranks", degrees->world);
    for (int j = 0; j < MESH_GROUPS; j++) {
        out[j] = (reach){.ranks = mesh_members(degrees, 0, (mesh_group)j, member)};
        for (int i = 0; i < out[j].ranks; i++)
            out[j].near += member[i] < per_node;
    }
    free(member);
    return ST_OK;
}

static double less(double first, double second)
{
    return first < second ? first : second;
}

static double more(double first, double second)
{
    return first > second ? first : second;
}

/* Seconds in which a rank receives this many bytes from its group. */
static double seconds_of(double bytes, mesh_group group, const reach *of, const rates *speeds)
{
    const double link = speeds->of[RATE_LINK], network = speeds->of[RATE_NETWORK];
    if (of->near == of->ranks)
        return bytes / link;
    if (group == MESH_PIPELINE)
        return bytes / network;
    if (group == MESH_EXPERT) { /* as many bytes come from each rank */
        const double peers = (double)of->ranks - 1.0, far = (double)(of->ranks - of->near);
        return more(bytes * far / peers / network, bytes * (peers - far) / peers / link);
    }
    return bytes / less(link, (double)of->near * network);
}

static status step_flops(const conf *options, const model_dims *dims, cost *price)
{
    enum { TRAINING = 4 }; /* the forward pass, a backward pass twice as long, and recomputing */
    row_kind_flops(&price->row, dims, &price->flops);
    if (price->flops.forward > INT64_MAX / TRAINING / options->training_global_batch_size)
        return FAIL(ST_CONFIG,
                    "training.global_batch_size %" PRId64 ": a step of %.2g FLOPs is more than can "
                    "be counted (2^63), and would take hours on any machine; give a smaller one",
                    options->training_global_batch_size,
                    TRAINING * (double)price->flops.forward *
                        (double)options->training_global_batch_size);
    int64_t *const parts[] = {&price->flops.text_linear,   &price->flops.text_attention,
                              &price->flops.head,          &price->flops.text_router,
                              &price->flops.text_experts,  &price->flops.patch_embed,
                              &price->flops.vision_blocks, &price->flops.vision_attention,
                              &price->flops.mergers,       &price->flops.forward};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] *= options->training_global_batch_size;
    return ST_OK;
}

static void put_traffic(cost *price, const reach *of, traffic_key key, const char *name,
                        mesh_group group)
{
    price->traffic[key] = (traffic){.name = name,
                                    .group = group,
                                    .ranks = of[group].ranks,
                                    .between_nodes = of[group].near < of[group].ranks};
}

static traffic_key key_of(mesh_group group, const char *what)
{
    if (strcmp(what, UNITS_REDUCE) == 0 || strcmp(what, UNITS_REDUCE_VISION) == 0)
        return TRAFFIC_REDUCE;
    switch (group) {
    case MESH_REPLICATE:
        return TRAFFIC_REPLICATE;
    case MESH_TENSOR:
        return TRAFFIC_TENSOR;
    case MESH_CONTEXT:
        return TRAFFIC_CONTEXT;
    case MESH_EXPERT:
        return TRAFFIC_EXPERT;
    case MESH_ROW:
        return TRAFFIC_ROW;
    case MESH_PIPELINE:
        return TRAFFIC_PIPELINE;
    default:
        return TRAFFIC_GATHER;
    }
}

/* The work of a rank if tokens, images and choices of experts are even. slots: [layers]. */
static received_work even_work(const conf *options, const layout *degrees, const model_dims *dims,
                               double micro_tokens, double patches, const recompute *recomputed,
                               received_slots *slots)
{
    const double peers = (double)(degrees->context * degrees->tensor),
                 micros = (double)degrees->accumulation;
    const double local = micro_tokens / peers;
    const int64_t moved =
        (int64_t)(micros * local * (double)(dims->text.top_k * degrees->expert_tensor) *
                  (double)(degrees->expert - 1) / (double)degrees->expert);
    for (int64_t i = 0; i < dims->text.layers; i++)
        slots[i] =
            dims_layer_is_moe(dims, i) ? (received_slots){moved, moved} : (received_slots){0};
    return (received_work){.micro_steps = degrees->accumulation,
                           .tokens = (int64_t)(micros * local),
                           .feature_rows = (int64_t)(micros * patches / 4.0 / peers),
                           .slots = slots,
                           .recomputed = *recomputed,
                           .act = ACT,
                           .acc = ACC,
                           .aux = options->loss_router_aux_coef};
}

/* Adds the seconds of gathering weights and reducing gradients, group by group: experts are stored
 * by fewer ranks than other weights, and these ranks may be spread over as many nodes. */
static void weights_seconds(const params *registry, const model_dims *dims,
                            const received_work *work, const reach *of, const rates *speeds,
                            cost *price)
{
    traffic *gather = &price->traffic[TRAFFIC_GATHER], *reduce = &price->traffic[TRAFFIC_REDUCE];
    for (int vision = 0; vision < 2; vision++) {
        const received_weights weights =
            received_weights_of(registry, dims, registry->mesh, work, vision);
        for (int i = 0; i < MESH_GROUPS; i++) {
            gather->seconds += seconds_of((double)weights.gather[i], (mesh_group)i, &of[i], speeds);
            reduce->seconds += seconds_of((double)weights.reduce[i], (mesh_group)i, &of[i], speeds);
        }
    }
}

/* Adds what the first rank of each stage receives. */
static status add_stages(const conf *options, const layout *degrees, const model_dims *dims,
                         const params *registry, const received_work *work, const reach *of,
                         const rates *speeds, cost *price)
{
    received_line line[RECEIVED_LINES];
    for (int stage = 0; stage < degrees->pipeline && degrees->world > 1; stage++) {
        params *own;
        TRY(params_sketch_new(
            registry, dims, degrees, stage * (int)(degrees->world / degrees->pipeline),
            options->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER, &own));
        const int count = received_lines(own, dims, own->mesh, work, line);
        weights_seconds(own, dims, work, of, speeds, price);
        params_sketch_free(&own);
        for (int i = 0; i < count; i++) /* sums of a few numbers are left out */
            if (strncmp(line[i].what, "sum ", 4) != 0 || line[i].group == MESH_REPLICATE)
                price->traffic[key_of(line[i].group, line[i].what)].bytes += line[i].bytes;
    }
    return ST_OK;
}

/* Bytes and seconds of each kind of traffic. The layout must have its stage_end. */
static status step_traffic(const conf *options, const layout *degrees, const model_dims *dims,
                           const params *registry, const rates *speeds, double micro_tokens,
                           double patches, const recomputes *recomputed, cost *price)
{
    reach of[MESH_GROUPS];
    TRY(reach_of(degrees, speeds->per_node, of));
    put_traffic(price, of, TRAFFIC_GATHER, "weights gathered", MESH_WHOLE);
    put_traffic(price, of, TRAFFIC_REDUCE, "gradients reduced", MESH_WHOLE);
    put_traffic(price, of, TRAFFIC_REPLICATE, "gradients over replicas", MESH_REPLICATE);
    put_traffic(price, of, TRAFFIC_TENSOR, "sequence and heads", MESH_TENSOR);
    put_traffic(price, of, TRAFFIC_CONTEXT, "keys and values", MESH_CONTEXT);
    put_traffic(price, of, TRAFFIC_EXPERT, "tokens and experts", MESH_EXPERT);
    put_traffic(price, of, TRAFFIC_PIPELINE, "activations between stages", MESH_PIPELINE);
    put_traffic(price, of, TRAFFIC_ROW, "features of shared rows", MESH_ROW);
    received_slots *slots = calloc((size_t)dims->text.layers + 1, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory to plan %" PRId64 " layers", dims->text.layers);
    const received_work work =
        even_work(options, degrees, dims, micro_tokens, patches, &recomputed->text, slots);
    status st = add_stages(options, degrees, dims, registry, &work, of, speeds, price);
    free(slots);
    for (int i = 0; i < TRAFFIC_KEYS; i++) {
        traffic *moved = &price->traffic[i];
        moved->bytes /= degrees->pipeline;
        if (i == TRAFFIC_GATHER || i == TRAFFIC_REDUCE)
            moved->seconds /= (double)degrees->pipeline;
        else
            moved->seconds =
                seconds_of((double)moved->bytes, moved->group, &of[moved->group], speeds);
    }
    return st;
}

/* Bytes of frozen weights that come from the host in the passes of a step, of the first rank of a
 * stage on average. */
static status host_weights(const conf *options, const layout *degrees, const model_dims *dims,
                           const params *registry, cost *price)
{
    for (int stage = 0; stage < degrees->pipeline && registry->frozen_on_host; stage++) {
        params *own;
        TRY(params_sketch_new(
            registry, dims, degrees, stage * (int)(degrees->world / degrees->pipeline),
            options->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER, &own));
        const double passes = (double)degrees->accumulation / (double)degrees->pipeline;
        for (int64_t i = 0; i < own->n_spans; i++) {
            const unit_span *of = &own->spans[i];
            const int64_t element = of->element_bytes ? of->element_bytes : ACT;
            const double bytes = of->on_host ? passes * (double)(of->piece * element) : 0.0;
            price->host_forward += bytes;
            price->host_backward += of->forward_only || of->stays ? 0.0 : bytes;
        }
        params_sketch_free(&own);
    }
    return ST_OK;
}

/* Seconds of a pass of attention, and of what is recomputed of it. */
static double attention_seconds(int64_t forward, double backward, int64_t again,
                                const attention_kernels *by, const rates *speeds)
{
    return (double)(forward + again) / speeds->of[by->forward] +
           (double)forward * COST_ATTENTION_BACKWARD * backward / speeds->of[by->backward];
}

/* Seconds that a rank computes in a step, and the part of them that is spent on recomputing. */
static void step_compute(const conf *options, const layout *degrees, const model_dims *dims,
                         const params *registry, const rates *speeds, const recomputes *recomputed,
                         double patches, bool deterministic, cost *price)
{
    const attention_kernels text_by =
        attention_kernels_text(options, speeds->sm, degrees, dims, &price->row, deterministic);
    const attention_kernels eye_by =
        attention_kernels_vision(options, speeds->sm, dims, &price->row, deterministic);
    training_share share;
    recompute_flops more;
    groups_share(registry, dims, &share);
    const flops *sum = &price->flops;
    const int64_t tokens = options->training_global_batch_size * price->row.seq_len;
    recompute_plan_count(recomputed, degrees, dims, &share, sum, tokens, (int64_t)patches, &more);
    const base_work base =
        base_work_of(options, degrees, dims, registry, &recomputed->text, share.text_dgrad, tokens);
    const adapter_work adapters = adapter_work_of(
        options, degrees, dims, registry, &recomputed->text, share.text_dgrad, tokens, speeds);
    more.dense += base.flops;
    price->flops.training = groups_training_flops(sum, &share);
    const double ranks = (double)degrees->world;
    price->adapter_flops = llround(adapters.forward.flops * ranks);
    price->recomputed = more.dense + more.experts + more.attention + more.vision_attention +
                        llround(adapters.again.flops * ranks);
    double text = 1.0 + share.wgrad[GROUP_TEXT] + share.text_dgrad;
    double expert = 1.0 + share.wgrad[GROUP_EXPERTS] + share.text_dgrad;
    double eye = 1.0 + share.wgrad[GROUP_VISION] + share.vision_dgrad;
    double merger = 1.0 + share.wgrad[GROUP_MERGER] + share.merger_dgrad;
    double linear = (double)(sum->text_linear - sum->text_experts);
    price->dense =
        (linear * text + (double)sum->head * (2.0 + share.head_wgrad) +
         (double)sum->patch_embed * (1.0 + share.patch_wgrad) + (double)sum->vision_blocks * eye +
         (double)sum->mergers * merger + (double)more.dense) /
        ranks / speeds->of[RATE_DENSE];
    price->experts = ((double)sum->text_experts * expert + (double)more.experts) / ranks /
                     speeds->of[RATE_EXPERTS];
    price->attention =
        attention_seconds(sum->text_attention, share.text_dgrad, more.attention, &text_by, speeds) /
        ranks;
    price->vision_attention = attention_seconds(sum->vision_attention, share.vision_dgrad,
                                                more.vision_attention, &eye_by, speeds) /
                              ranks;
    price->adapters = adapters.forward.seconds + adapters.backward.seconds + adapters.again.seconds;
    price->text_backward = text_by.backward;
    price->vision_backward = eye_by.backward;
    /* The forward pass moves a third of the bytes of both passes. */
    double text_bytes = (double)tokens * (double)dims->text.layers * cost_layer_bytes(&dims->text);
    double eye_bytes = patches * (double)dims->vision.depth * cost_block_bytes(&dims->vision);
    double bytes_recomputed =
        (text_bytes * recompute_plan_share(&recomputed->text, dims->text.layers, share.text_dgrad,
                                           RECOMPUTE_CHEAP) +
         eye_bytes * recompute_plan_share(&recomputed->vision, dims->vision.depth,
                                          share.vision_dgrad, RECOMPUTE_CHEAP)) /
        3.0;
    price->memory = ((text_bytes + eye_bytes + bytes_recomputed) / ranks + base.forward +
                     base.backward + base.again) /
                    speeds->of[RATE_COPY];
    price->recompute = ((double)more.dense / speeds->of[RATE_DENSE] +
                        (double)more.experts / speeds->of[RATE_EXPERTS] +
                        (double)more.attention / speeds->of[text_by.forward] +
                        (double)more.vision_attention / speeds->of[eye_by.forward] +
                        bytes_recomputed / speeds->of[RATE_COPY]) /
                           ranks +
                       base.again / speeds->of[RATE_COPY] + adapters.again.seconds;
    const double updated =
        (double)params_trained(registry) /
        (double)(degrees->shard * degrees->context * degrees->tensor * degrees->pipeline);
    price->update = updated * update_bytes(options) / speeds->of[RATE_COPY];
    price->host_moments = registry->moments_on_host ? updated * 2.0 * moment_bytes(options) : 0.0;
}

/* All stages go at the pace of the slowest one: returns its time over the mean. */
static status slowest_stage(const conf *options, const layout *degrees, const model_dims *dims,
                            const params *registry, double *out)
{
    *out = 1.0;
    return degrees->pipeline == 1 ? ST_OK
                                  : stage_plan_uneven(options, dims, registry, degrees, out);
}

/* Adds what comes over the link to the host, `link` in bytes per second. Frozen weights move beside
 * the pass that reads them. Moments move beside the update, and beside the backward pass too where
 * that has the updates; what they take back goes the other way at the same time. */
static void add_host(double forward, double backward, double link, cost *price)
{
    const double beside = backward + (price->in_backward ? price->update : 0.0);
    const double in_backward = price->in_backward ? price->host_moments : 0.0;
    const double after = price->host_moments - in_backward;
    price->host = (price->host_forward + price->host_backward + price->host_moments) / link;
    price->host_exposed = more(0.0, price->host_forward / link - forward) +
                          more(0.0, (price->host_backward + in_backward) / link - beside) +
                          (after > 0 ? more(0.0, after / link - price->update) : 0.0);
}

/* Puts the parts of a step together. link: bytes per second between the host and the device.
 * uneven: the slowest stage's time over the mean. */
static void compose_step(const layout *degrees, double uneven, double link, cost *price)
{
    double compute = price->dense + price->experts + price->attention + price->vision_attention +
                     price->memory + price->adapters;
    double gather = price->traffic[TRAFFIC_GATHER].seconds / 2.0;
    double reduce = price->traffic[TRAFFIC_REDUCE].seconds;
    double forward = (compute - price->recompute) / 3.0; /* the backward pass is the rest */
    price->exposed = more(0.0, gather - forward) + more(0.0, gather + reduce - (compute - forward));
    for (int i = TRAFFIC_REPLICATE; i < TRAFFIC_KEYS; i++)
        price->exposed += price->traffic[i].seconds;
    double stages = (double)degrees->pipeline, micros = (double)degrees->accumulation;
    price->bubble = (compute + price->exposed) * (uneven * (1.0 + (stages - 1.0) / micros) - 1.0);
    add_host(forward, compute - forward, link, price);
    price->step = compute + price->exposed + price->bubble + price->update + price->host_exposed;
}

/* No card has timed the portable kernel, so shipped rates are Hopper's. A rate of the user's file,
 * which names no source, is the portable one's if that is all that the card can run. */
static status choose_experts(const conf *options, const model_dims *dims, const rates *speeds,
                             bool *out_untimed)
{
    bool hopper, possible;
    const bool shipped = speeds->from[RATE_EXPERTS] != NULL;
    TRY(experts_choose((int)options->training_experts, speeds->sm, &hopper));
    TRY(experts_choose(EXPERTS_AUTO, speeds->sm, &possible));
    *out_untimed = dims->text.experts > 0 && !hopper && (shipped || possible);
    return ST_OK;
}

status cost_of(const conf *options, const layout *degrees, const model_dims *dims,
               const params *registry, const rates *speeds, const recomputes *recomputed, cost *out)
{
    cost price = {.row = row_kind_of(options, dims),
                  .deterministic = options->training_deterministic,
                  .in_backward = registry->in_backward};
    TRY(choose_experts(options, dims, speeds, &price.untimed_experts));
    TRY(step_flops(options, dims, &price));
    double rows = (double)options->training_local_batch_size;
    double images = row_kind_images(&price.row);
    double patches = images * (double)(price.row.grid[0] * price.row.grid[1] * price.row.grid[2]);
    layout cut = *degrees;
    TRY(stage_plan(options, dims, registry, &cut));
    TRY(step_traffic(options, &cut, dims, registry, speeds, rows * (double)price.row.seq_len,
                     rows * patches, recomputed, &price));
    TRY(host_weights(options, &cut, dims, registry, &price));
    patches *= (double)options->training_global_batch_size;
    double uneven;
    TRY(slowest_stage(options, &cut, dims, registry, &uneven));
    cost other = price;
    step_compute(options, degrees, dims, registry, speeds, recomputed, patches,
                 !price.deterministic, &other);
    compose_step(degrees, uneven, speeds->of[RATE_HOST], &other);
    step_compute(options, degrees, dims, registry, speeds, recomputed, patches, price.deterministic,
                 &price);
    compose_step(degrees, uneven, speeds->of[RATE_HOST], &price);
    price.other_step = other.step;
    double tokens = (double)(options->training_global_batch_size * price.row.seq_len);
    price.tokens_per_s = tokens / (double)degrees->world / price.step;
    const double pairs = row_kind_pairs(&price.row) * (double)options->training_global_batch_size;
    price.pairs_per_s = pairs / price.step;
    price.pair_flops = (double)price.flops.training / pairs;
    price.saving = row_kind_saving(&price.row, dims);
    price.epoch_pairs = row_kind_epoch(options, &price.row);
    price.epoch = (double)price.epoch_pairs / price.pairs_per_s;
    price.unknown_shares = row_kind_unknown(options, &price.row);
    price.mfu =
        (double)price.flops.training / (double)degrees->world / price.step / speeds->of[RATE_PEAK];
    *out = price;
    return ST_OK;
}
