/* SPDX-License-Identifier: Apache-2.0 */
/* session_device.c: picks the device and the daemon of a rank, and decides how much of a step may
 * be captured. */

#include <string.h>

#include "common/conf/rank_lists.h"
#include "common/program/log.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/ops/open.h"
#include "trainer/plan/memory.h"
#include "trainer/run/session_parts.h"

/* A rank takes the GPU whose number is the rank's place on its machine. Ranks may share a GPU only
 * if collectives go through host memory, since NCCL wants one GPU for each rank. */
status session_device(session *run)
{
    const conf *options = run->conf;
    const bool gpus = run->world && options->training_backend != BACKEND_CPU;
    device_options how = {.index = gpus ? world_gpu(&run->world->place) : 0,
                          .share = gpus && options->comm_engine == ENGINE_MPI,
                          .threads = (int)options->training_threads,
                          .attention = options->training_attention,
                          .experts = options->training_experts,
                          .deterministic = options->training_deterministic,
                          .collectives =
                              gpus && run->world->engine && options->comm_engine != ENGINE_MPI,
                          .host_ranks = run->world ? run->world->place.local_size : 1};
    TRY(device_open((int)options->training_backend, &how, &run->device));
    log_info("device %s", run->device->description);
    TRY(world_attach(run->world, run->device));
    return run->device->backend->stream_new(run->device, &run->stream);
}

static bool is_staged(const session *run)
{
    return run->mesh.layout.pipeline > 1;
}

static bool shares_experts(const session *run)
{
    return exchange_is_needed(&run->mesh.layout) && run->dims.text.experts > 0;
}

status session_uncaptured(const session *run, bool *out)
{
    *out = run->use != SESSION_TRAIN || is_staged(run) ||
           strcmp(run->conf->cuda_graph_scope, "off") == 0;
    if (*out || !shares_experts(run))
        return ST_OK;
    const exchange_way way = memory_exchange_way(run->conf, &run->mesh.layout);
    bool reached = way != EXCHANGE_BY_HOST;
    if (way == EXCHANGE_IF_REACHED)
        TRY(comm_window_reached(mesh_comm(&run->mesh, MESH_WORLD),
                                mesh_comm(&run->mesh, MESH_EXPERT), &reached));
    *out = !reached;
    return ST_OK;
}

/* The part of a step that may be captured. Nothing is captured in two cases. If ranks share
 * experts and exchange slots through the host, the host reads counts inside the step, which no
 * graph can hold. In a pipeline, a graph would have to be captured for every flight, the place
 * where a micro-batch's activations are kept. */
static const char *scope(const session *run)
{
    const char *wanted = run->conf->cuda_graph_scope;
    const device_choices *made = &run->device->choices;
    if (strcmp(wanted, "off") == 0 || !run->device->backend->capture_begin)
        return wanted;
    const bool shared = shares_experts(run) && !model_exchange(run->model);
    if (!shared && !is_staged(run))
        return made->open && made->way[CHOICE_GRAPHS] == GRAPHS_NONE ? "off" : wanted;
    log_warn("cuda_graph.scope: steps of this layout are not captured, because the host reads "
             "counts of shared experts inside them, or because the ranks are stages of a pipeline");
    return "off";
}

static status note_capture(void *ledger, int64_t piece, bool begins)
{
    return comm_ledger_captured(ledger, piece, begins);
}

static void note_replay(void *ledger, int64_t piece)
{
    comm_ledger_replayed(ledger, piece);
}

void session_capture_pause(session *run, bool paused)
{
    graph_replay_pause(run->stream, paused);
}

status session_capture(session *run)
{
    const char *captured = scope(run);
    TRY(graph_replay_new(run->stream, captured));
    choices_text(&run->device->choices, captured, run->conf->training_deterministic, run->choices);
    if (run->choices[0])
        log_info("chosen for this run: %s", run->choices);
    run->same_shapes = run->world && run->world->rank_link && graph_replay_any(run->stream);
    if (run->world)
        graph_replay_watched(run->stream,
                             &(graph_replay_watch){run->world->ledger, note_capture, note_replay});
    return ST_OK;
}

status session_endpoint(session *run)
{
    const char *list = run->conf->prepd_rank_endpoints, *endpoint = run->conf->prepd_endpoint;
    const int ranks = (int)layout_consumers(&run->mesh.layout);
    size_t size = strlen(endpoint);
    if (*list && !run->conf->feed_replay[0]) {
        const int missing = rank_endpoints_missing(list, ranks);
        if (missing < ranks)
            return FAIL_IN(ST_CONFIG, conf_place(run->conf),
                           "prepd.rank_endpoints names no daemon for rank %d; this run has %d "
                           "data-parallel ranks",
                           missing, ranks);
        endpoint = rank_endpoints_find(list, run->mesh.place.consumer, &size);
    }
    run->endpoint = strndup(endpoint, size);
    return run->endpoint ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for an endpoint");
}
