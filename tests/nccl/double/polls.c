/* SPDX-License-Identifier: Apache-2.0 */
/* polls.c: what the shim's calls do. All ranks of a communicator show each other what they have
 * called and compare it; then bytes go through shared memory piece by piece. Nothing here waits: a
 * poll does what can be done now. Sums are taken in the order of the ranks, as in the MPI engine.
 *
 *   a collective: ARRIVE -> COMPARE -> WRITE -> READ -> AGAIN -> done, or WRITE for the next piece
 */
#include <string.h>

#include "tests/nccl/double/shim.h"
#include "trainer/parallel/comm/comm_sum.h"

enum { ARRIVE, COMPARE, WRITE, READ, AGAIN };

static const struct {
    int nccl;
    st_dtype own;
    const char *name;
    size_t size;
} types[] = {{ncclUint8, DT_U8, "uint8", 1},         {ncclFloat16, DT_F16, "float16", 2},
             {ncclBfloat16, DT_BF16, "bfloat16", 2}, {ncclInt32, DT_I32, "int32", 4},
             {ncclUint32, DT_U32, "uint32", 4},      {ncclFloat32, DT_F32, "float32", 4},
             {ncclInt64, DT_I64, "int64", 8},        {ncclUint64, DT_U64, "uint64", 8},
             {ncclFloat64, DT_F64, "float64", 8}};
enum { N_TYPES = sizeof types / sizeof *types };

static int find_type(int type)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].nccl == type)
            return i;
    return -1;
}

size_t shim_type_size(int type)
{
    int i = find_type(type);
    return i < 0 ? 0 : types[i].size;
}

const char *shim_type_name(int type)
{
    int i = find_type(type);
    return i < 0 ? "?" : types[i].name;
}

/* ---- collectives ---- */

/* How many elements of each rank's share the stage holds at once. */
static int64_t elements_at_once(const struct ncclComm *communicator, const shim_call *call)
{
    int64_t shares = call->kind == SHIM_REDUCE_SCATTER ? communicator->size : 1;
    if (call->hollow)
        return call->count;
    return SHIM_STAGE_BYTES / shares / (int64_t)shim_type_size(call->type);
}

static int64_t elements_now(const struct ncclComm *communicator, const shim_part *of)
{
    int64_t left = of->call.count - of->first, most = elements_at_once(communicator, &of->call);
    return left < most ? left : most;
}

static bool all_reached(const struct ncclComm *communicator, size_t field, int64_t number)
{
    for (int i = 0; i < communicator->size; i++) {
        const char *theirs = (const char *)shim_member_of(communicator, i);
        if (atomic_load((const atomic_llong *)(const void *)(theirs + field)) < number)
            return false;
    }
    return true;
}

static bool all_called_the_same(struct ncclComm *communicator, const shim_call *mine)
{
    for (int i = 0; i < communicator->size; i++) {
        const shim_call *theirs = &shim_member_of(communicator, i)->now;
        if (memcmp(theirs, mine, sizeof *mine) == 0)
            continue;
        shim_differ(communicator, communicator->rank, mine, i, theirs);
        return false;
    }
    return true;
}

static void write_piece(struct ncclComm *communicator, const shim_part *part)
{
    const int64_t count = elements_now(communicator, part),
                  size = (int64_t)shim_type_size(part->call.type);
    char *stage = shim_stage_of(communicator, communicator->rank);
    if (part->call.kind == SHIM_BROADCAST && part->call.root != communicator->rank)
        return;
    int shares = part->call.kind == SHIM_REDUCE_SCATTER ? communicator->size : 1;
    for (int k = 0; k < shares; k++)
        memcpy(stage + k * count * size, part->send + (k * part->call.count + part->first) * size,
               (size_t)(count * size));
}

static void sum_piece(struct ncclComm *communicator, const shim_part *part, int64_t count,
                      int share)
{
    const int i = find_type(part->call.type);
    const int64_t size = (int64_t)types[i].size;
    const void *from[SHIM_RANKS_MAX];
    for (int j = 0; j < communicator->size; j++)
        from[j] = shim_stage_of(communicator, j) + share * count * size;
    if (comm_sum(part->recv + part->first * size, from, communicator->size, count, types[i].own,
                 part->call.op == ncclMax ? COMM_MAX : COMM_SUM) != ST_OK)
        atomic_store(&communicator->shared->told, 1);
}

static void read_piece(struct ncclComm *communicator, const shim_part *part)
{
    const int64_t count = elements_now(communicator, part),
                  size = (int64_t)shim_type_size(part->call.type);
    switch (part->call.kind) {
    case SHIM_ALL_GATHER:
        for (int i = 0; i < communicator->size; i++)
            memcpy(part->recv + (i * part->call.count + part->first) * size,
                   shim_stage_of(communicator, i), (size_t)(count * size));
        break;
    case SHIM_REDUCE_SCATTER:
        sum_piece(communicator, part, count, communicator->rank);
        break;
    case SHIM_ALL_REDUCE:
        sum_piece(communicator, part, count, 0);
        break;
    default:
        memmove(part->recv + part->first * size, shim_stage_of(communicator, part->call.root),
                (size_t)(count * size));
    }
}

static int64_t bytes_from_others(const struct ncclComm *communicator, const shim_call *call)
{
    const int64_t count = call->count, size = (int64_t)shim_type_size(call->type);
    int64_t first, own;
    switch (call->kind) {
    case SHIM_ALL_REDUCE:
        own = comm_cut(communicator->rank, communicator->size, count, &first);
        return ((communicator->size - 1) * own + count - own) * size;
    case SHIM_BROADCAST:
        return communicator->rank == call->root ? 0 : count * size;
    case SHIM_SEND:
        return 0;
    case SHIM_RECV:
        return count * size;
    default:
        return (communicator->size - 1) * count * size;
    }
}

static bool poll_collective(struct ncclComm *communicator, shim_work *work)
{
    shim_part *part = work->part;
    shim_member *me = shim_member_of(communicator, communicator->rank);
    for (;;) {
        switch (work->phase) {
        case ARRIVE:
            part->call.number = ++communicator->calls;
            part->first = 0;
            me->now = part->call;
            atomic_store(&me->arrived, communicator->calls);
            work->phase = COMPARE;
            break;
        case COMPARE:
            if (!all_reached(communicator, offsetof(shim_member, arrived), part->call.number))
                return false;
            if (!all_called_the_same(communicator, &part->call))
                return false;
            work->phase = WRITE;
            break;
        case WRITE:
            if (part->call.count > 0 && !part->call.hollow)
                write_piece(communicator, part);
            atomic_fetch_add(&me->wrote, 1);
            work->phase = READ;
            break;
        case READ:
            if (!all_reached(communicator, offsetof(shim_member, wrote), atomic_load(&me->wrote)))
                return false;
            if (part->call.count > 0 && !part->call.hollow)
                read_piece(communicator, part);
            atomic_fetch_add(&me->read, 1);
            work->phase = AGAIN;
            break;
        default: /* AGAIN: the stage is used for the next piece when all have read this one */
            if (!all_reached(communicator, offsetof(shim_member, read), atomic_load(&me->read)))
                return false;
            part->first += part->call.count > 0 ? elements_now(communicator, part) : 0;
            work->phase = WRITE;
            if (part->first < part->call.count)
                break;
            shim_record(communicator, &part->call, bytes_from_others(communicator, &part->call));
            return true;
        }
    }
}

/* ---- messages ---- */

static int64_t mail_now(const shim_part *of)
{
    int64_t left = of->call.count * (int64_t)shim_type_size(of->call.type) - of->first;
    return left < SHIM_MAIL_BYTES || of->call.hollow ? left : SHIM_MAIL_BYTES;
}

static bool is_last(const shim_part *of)
{
    return of->first >= of->call.count * (int64_t)shim_type_size(of->call.type);
}

/* A send is done when the other rank has taken all of it, so that a rank does not continue if its
 * message is not received. */
static void poll_send(struct ncclComm *communicator, shim_part *part)
{
    shim_mail *mail = shim_mail_of(communicator, communicator->rank, part->peer);
    if (atomic_load(&mail->put) != atomic_load(&mail->got))
        return;
    if (part->begun && is_last(part)) {
        part->done = true;
        return;
    }
    if (!part->begun) {
        part->call.number = part->number;
        mail->now = part->call;
    }
    part->begun = true;
    int64_t count = mail_now(part);
    if (!part->call.hollow)
        memcpy(mail->bytes, part->send + part->first, (size_t)count);
    part->first += count;
    atomic_fetch_add(&mail->put, 1);
}

static void poll_recv(struct ncclComm *communicator, shim_part *part)
{
    shim_mail *mail = shim_mail_of(communicator, part->peer, communicator->rank);
    if (atomic_load(&mail->put) == atomic_load(&mail->got))
        return;
    if (!part->begun) {
        part->call.number = part->number;
        if (mail->now.count != part->call.count || mail->now.type != part->call.type ||
            mail->now.number != part->call.number || mail->now.hollow != part->call.hollow ||
            mail->now.graph != part->call.graph) {
            shim_differ(communicator, communicator->rank, &part->call, part->peer, &mail->now);
            return;
        }
    }
    part->begun = true;
    int64_t count = mail_now(part);
    if (!part->call.hollow)
        memcpy(part->recv + part->first, mail->bytes, (size_t)count);
    part->first += count;
    part->done = is_last(part);
    atomic_fetch_add(&mail->got, 1);
    if (part->done)
        shim_record(communicator, &part->call, bytes_from_others(communicator, &part->call));
}

/* Whether part `next` may run: messages between two ranks run in the order of the calls. */
static bool is_next(const shim_work *work, int next)
{
    for (int k = 0; k < next; k++)
        if (!work->part[k].done && work->part[k].peer == work->part[next].peer &&
            work->part[k].call.kind == work->part[next].call.kind)
            return false;
    return true;
}

static bool poll_messages(struct ncclComm *communicator, shim_work *work)
{
    bool done = true;
    for (int i = 0; i < work->count; i++) {
        shim_part *part = &work->part[i];
        if (!part->done && is_next(work, i)) {
            if (part->call.kind == SHIM_SEND)
                poll_send(communicator, part);
            else
                poll_recv(communicator, part);
        }
        done &= part->done;
    }
    return done;
}

static void begin_work(shim_work *work)
{
    struct ncclComm *communicator = work->comm;
    work->phase = ARRIVE;
    for (int i = 0; i < work->count; i++) {
        shim_part *part = &work->part[i];
        part->begun = part->done = false;
        part->first = 0;
        if (part->call.kind == SHIM_SEND)
            part->number = ++communicator->sent[part->peer];
        else if (part->call.kind == SHIM_RECV)
            part->number = ++communicator->received[part->peer];
    }
}

bool shim_poll(void *work, bool first)
{
    shim_work *queued = work;
    struct ncclComm *communicator = queued->comm;
    if (atomic_load(&communicator->aborted) || atomic_load(&communicator->revoked))
        return true;
    if (queued->before && queued->before->runs <= queued->runs) { /* it may not begin yet */
        queued->phase = -1;
        return false;
    }
    if (first || queued->phase == -1)
        begin_work(queued);
    if (!queued->busy)
        atomic_fetch_add(&communicator->busy, 1);
    queued->busy = true;
    if (atomic_load(&communicator->shared->differs))
        return false; /* it never ends, until the communicator is aborted */
    bool done = queued->part[0].call.kind >= SHIM_SEND ? poll_messages(communicator, queued)
                                                       : poll_collective(communicator, queued);
    queued->runs += done;
    if (done)
        atomic_fetch_sub(&communicator->busy, 1);
    queued->busy = !done;
    return done;
}

void shim_drop(void *work)
{
    const shim_work *held = work;
    if (held->capture == held->comm->capture)
        held->comm->capture = NULL; /* another graph may get its address */
    atomic_fetch_sub(&held->comm->graphs, 1);
}
