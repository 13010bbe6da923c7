/* polls.c: what the shim's calls do: all ranks of a communicator show each other what they have
 * called, then bytes go through shared memory piece by piece. Nothing here waits: a poll does what
 * can be done. Sums are in rank order, as the MPI engine makes them. */
#include <string.h>

#include "trainer/parallel/nccl_double/shim.h"
#include "trainer/parallel/comm_sum.h"

enum { ARRIVE, COMPARE, WRITE, READ, AGAIN }; /* phases of a collective */

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

/* Pieces of a call that the stage holds at once, as elements of each rank's share. */
static int64_t elements_at_once(const struct ncclComm *c, const shim_call *call)
{
    int64_t shares = call->kind == SHIM_REDUCE_SCATTER ? c->size : 1;
    if (call->hollow)
        return call->count;
    return SHIM_STAGE_BYTES / shares / (int64_t)shim_type_size(call->type);
}

static int64_t elements_now(const struct ncclComm *c, const shim_part *p)
{
    int64_t left = p->call.count - p->first, most = elements_at_once(c, &p->call);
    return left < most ? left : most;
}

static bool all_reached(const struct ncclComm *c, size_t field, int64_t number)
{
    for (int r = 0; r < c->size; r++) {
        const char *m = (const char *)shim_member_of(c, r);
        if (atomic_load((const atomic_llong *)(const void *)(m + field)) < number)
            return false;
    }
    return true;
}

static bool all_called_the_same(struct ncclComm *c, const shim_call *mine)
{
    for (int r = 0; r < c->size; r++) {
        const shim_call *theirs = &shim_member_of(c, r)->now;
        if (memcmp(theirs, mine, sizeof *mine) == 0)
            continue;
        shim_differ(c, c->rank, mine, r, theirs);
        return false;
    }
    return true;
}

static void write_piece(struct ncclComm *c, const shim_part *p)
{
    const int64_t n = elements_now(c, p), size = (int64_t)shim_type_size(p->call.type);
    char *stage = shim_stage_of(c, c->rank);
    if (p->call.kind == SHIM_BROADCAST && p->call.root != c->rank)
        return;
    int shares = p->call.kind == SHIM_REDUCE_SCATTER ? c->size : 1;
    for (int k = 0; k < shares; k++)
        memcpy(stage + k * n * size, p->send + (k * p->call.count + p->first) * size,
               (size_t)(n * size));
}

static void sum_piece(struct ncclComm *c, const shim_part *p, int64_t n, int share)
{
    const int i = find_type(p->call.type);
    const int64_t size = (int64_t)types[i].size;
    const void *from[SHIM_RANKS_MAX];
    for (int r = 0; r < c->size; r++)
        from[r] = shim_stage_of(c, r) + share * n * size;
    if (comm_sum(p->recv + p->first * size, from, c->size, n, types[i].own,
                 p->call.op == ncclMax ? COMM_MAX : COMM_SUM) != ST_OK)
        atomic_store(&c->shared->told, 1);
}

static void read_piece(struct ncclComm *c, const shim_part *p)
{
    const int64_t n = elements_now(c, p), size = (int64_t)shim_type_size(p->call.type);
    switch (p->call.kind) {
    case SHIM_ALL_GATHER:
        for (int r = 0; r < c->size; r++)
            memcpy(p->recv + (r * p->call.count + p->first) * size, shim_stage_of(c, r),
                   (size_t)(n * size));
        break;
    case SHIM_REDUCE_SCATTER:
        sum_piece(c, p, n, c->rank);
        break;
    case SHIM_ALL_REDUCE:
        sum_piece(c, p, n, 0);
        break;
    default:
        memmove(p->recv + p->first * size, shim_stage_of(c, p->call.root), (size_t)(n * size));
    }
}

static int64_t bytes_from_others(const struct ncclComm *c, const shim_call *call)
{
    const int64_t n = call->count, size = (int64_t)shim_type_size(call->type);
    int64_t first, own;
    switch (call->kind) {
    case SHIM_ALL_REDUCE:
        own = comm_cut(c->rank, c->size, n, &first);
        return ((c->size - 1) * own + n - own) * size;
    case SHIM_BROADCAST:
        return c->rank == call->root ? 0 : n * size;
    case SHIM_SEND:
        return 0;
    case SHIM_RECV:
        return n * size;
    default:
        return (c->size - 1) * n * size;
    }
}

static bool poll_collective(struct ncclComm *c, shim_work *w)
{
    shim_part *p = w->part;
    shim_member *me = shim_member_of(c, c->rank);
    for (;;) {
        switch (w->phase) {
        case ARRIVE:
            p->call.number = ++c->calls;
            p->first = 0;
            me->now = p->call;
            atomic_store(&me->arrived, c->calls);
            w->phase = COMPARE;
            break;
        case COMPARE:
            if (!all_reached(c, offsetof(shim_member, arrived), p->call.number))
                return false;
            if (!all_called_the_same(c, &p->call))
                return false;
            w->phase = WRITE;
            break;
        case WRITE:
            if (p->call.count > 0 && !p->call.hollow)
                write_piece(c, p);
            atomic_fetch_add(&me->wrote, 1);
            w->phase = READ;
            break;
        case READ:
            if (!all_reached(c, offsetof(shim_member, wrote), atomic_load(&me->wrote)))
                return false;
            if (p->call.count > 0 && !p->call.hollow)
                read_piece(c, p);
            atomic_fetch_add(&me->read, 1);
            w->phase = AGAIN;
            break;
        default: /* the stage is used again when all have read it */
            if (!all_reached(c, offsetof(shim_member, read), atomic_load(&me->read)))
                return false;
            p->first += p->call.count > 0 ? elements_now(c, p) : 0;
            w->phase = WRITE;
            if (p->first < p->call.count)
                break;
            shim_record(c, &p->call, bytes_from_others(c, &p->call));
            return true;
        }
    }
}

/* ---- messages ---- */

static int64_t mail_now(const shim_part *p)
{
    int64_t left = p->call.count * (int64_t)shim_type_size(p->call.type) - p->first;
    return left < SHIM_MAIL_BYTES || p->call.hollow ? left : SHIM_MAIL_BYTES;
}

static bool is_last(const shim_part *p)
{
    return p->first >= p->call.count * (int64_t)shim_type_size(p->call.type);
}

/* Done when the other has taken it all, so that a rank whose message is not received does not go
 * on. */
static void poll_send(struct ncclComm *c, shim_part *p)
{
    shim_mail *m = shim_mail_of(c, c->rank, p->peer);
    if (atomic_load(&m->put) != atomic_load(&m->got))
        return;
    if (p->begun && is_last(p)) {
        p->done = true;
        return;
    }
    if (!p->begun) {
        p->call.number = p->number;
        m->now = p->call;
    }
    p->begun = true;
    int64_t n = mail_now(p);
    if (!p->call.hollow)
        memcpy(m->bytes, p->send + p->first, (size_t)n);
    p->first += n;
    atomic_fetch_add(&m->put, 1);
}

static void poll_recv(struct ncclComm *c, shim_part *p)
{
    shim_mail *m = shim_mail_of(c, p->peer, c->rank);
    if (atomic_load(&m->put) == atomic_load(&m->got))
        return;
    if (!p->begun) {
        p->call.number = p->number;
        if (m->now.count != p->call.count || m->now.type != p->call.type ||
            m->now.number != p->call.number || m->now.hollow != p->call.hollow) {
            shim_differ(c, c->rank, &p->call, p->peer, &m->now);
            return;
        }
    }
    p->begun = true;
    int64_t n = mail_now(p);
    if (!p->call.hollow)
        memcpy(p->recv + p->first, m->bytes, (size_t)n);
    p->first += n;
    p->done = is_last(p);
    atomic_fetch_add(&m->got, 1);
    if (p->done)
        shim_record(c, &p->call, bytes_from_others(c, &p->call));
}

/* Between two ranks messages go in the order of the calls. */
static bool is_next(const shim_work *w, int i)
{
    for (int k = 0; k < i; k++)
        if (!w->part[k].done && w->part[k].peer == w->part[i].peer &&
            w->part[k].call.kind == w->part[i].call.kind)
            return false;
    return true;
}

static bool poll_messages(struct ncclComm *c, shim_work *w)
{
    bool done = true;
    for (int i = 0; i < w->n; i++) {
        shim_part *p = &w->part[i];
        if (!p->done && is_next(w, i)) {
            if (p->call.kind == SHIM_SEND)
                poll_send(c, p);
            else
                poll_recv(c, p);
        }
        done &= p->done;
    }
    return done;
}

static void begin_work(shim_work *w)
{
    struct ncclComm *c = w->comm;
    w->phase = ARRIVE;
    for (int i = 0; i < w->n; i++) {
        shim_part *p = &w->part[i];
        p->begun = p->done = false;
        p->first = 0;
        if (p->call.kind == SHIM_SEND)
            p->number = ++c->sent[p->peer];
        else if (p->call.kind == SHIM_RECV)
            p->number = ++c->received[p->peer];
    }
}

bool shim_poll(void *work, bool first)
{
    shim_work *w = work;
    struct ncclComm *c = w->comm;
    if (atomic_load(&c->aborted) || atomic_load(&c->revoked))
        return true;
    if (w->before && w->before->runs <= w->runs) { /* not begun */
        w->phase = -1;
        return false;
    }
    if (first || w->phase == -1)
        begin_work(w);
    if (atomic_load(&c->shared->differs))
        return false; /* until it is aborted */
    bool done = w->part[0].call.kind >= SHIM_SEND ? poll_messages(c, w) : poll_collective(c, w);
    w->runs += done;
    return done;
}
