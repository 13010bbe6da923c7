/* session_device.c: picks the device of a rank and decides how much of a step may be captured. */
#include "trainer/run/session_device.h"

#include "common/program/log.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/moe.h"
#include "trainer/ops/open.h"

/* A rank takes the GPU whose number is the rank's place on its machine. Ranks may share a GPU only
 * if collectives go through host memory, since NCCL wants one GPU for each rank. */
status session_device(session *s)
{
    const conf *c = s->conf;
    const bool gpus = s->world && c->training_backend != BACKEND_CPU;
    device_options o = {.index = gpus ? world_gpu(&s->world->place) : 0,
                        .share = gpus && c->comm_engine == ENGINE_MPI,
                        .threads = (int)c->training_threads,
                        .attention = c->training_attention,
                        .deterministic = c->training_deterministic,
                        .claims = s->world ? s->world->claims : (device_claims){0}};
    const int other = s->world ? s->world->backend : 0;
    TRY(device_open(other ? other : (int)c->training_backend, &o, &s->device));
    log_info("device %s", s->device->description);
    TRY(world_attach(s->world, s->device));
    return s->device->backend->stream_new(s->device, &s->stream);
}

/* The part of a step that may be captured. Nothing is captured in two cases. If ranks share
 * experts and exchange slots through the host, the host reads counts inside the step, which no
 * graph can hold. In a pipeline, a graph would have to be captured for every flight, the place
 * where a micro-batch's activations are kept. */
static const char *scope(const session *s)
{
    const bool shared =
        moe_is_shared(&s->mesh.layout) && s->dims.text.experts > 0 && !model_exchange(s->model);
    const bool staged = s->mesh.layout.pipeline > 1;
    if ((!shared && !staged) || !s->device->backend->capture_begin)
        return s->conf->cuda_graph_scope;
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

status session_capture(session *s)
{
    TRY(graph_replay_new(s->stream, scope(s)));
    if (s->world)
        graph_replay_watched(s->stream,
                             &(graph_replay_watch){s->world->ledger, note_capture, note_replay});
    return ST_OK;
}
