/* polls.c: what the shim's calls do. All ranks of a communicator show each other what they have
 * called and compare it; then bytes go through shared memory piece by piece. Nothing here waits: a
 * poll does what can be done now. Sums are taken in the order of the ranks, as in the MPI engine.
 *
 *   a collective: ARRIVE -> COMPARE -> WRITE -> READ -> AGAIN -> done, or WRITE for the next piece
 */
#include <string.h>

#include "trainer/parallel/nccl_double/shim.h"
#include "trainer/parallel/comm_sum.h"

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

static void write_piece(struct ncclComm *c, const shim_part *part)
{
    const int64_t n = elements_now(c, part), size = (int64_t)shim_type_size(part->call.type);
    char *stage = shim_stage_of(c, c->rank);
    if (part->call.kind == SHIM_BROADCAST && part->call.root != c->rank)
        return;
    int shares = part->call.kind == SHIM_REDUCE_SCATTER ? c->size : 1;
    for (int k = 0; k < shares; k++)
        memcpy(stage + k * n * size, part->send + (k * part->call.count + part->first) * size,
               (size_t)(n * size));
}

static void sum_piece(struct ncclComm *c, const shim_part *part, int64_t n, int share)
{
    const int i = find_type(part->call.type);
    const int64_t size = (int64_t)types[i].size;
    const void *from[SHIM_RANKS_MAX];
    for (int r = 0; r < c->size; r++)
        from[r] = shim_stage_of(c, r) + share * n * size;
    if (comm_sum(part->recv + part->first * size, from, c->size, n, types[i].own,
                 part->call.op == ncclMax ? COMM_MAX : COMM_SUM) != ST_OK)
        atomic_store(&c->shared->told, 1);
}

static void read_piece(struct ncclComm *c, const shim_part *part)
{
    const int64_t n = elements_now(c, part), size = (int64_t)shim_type_size(part->call.type);
    switch (part->call.kind) {
    case SHIM_ALL_GATHER:
        for (int r = 0; r < c->size; r++)
            memcpy(part->recv + (r * part->call.count + part->first) * size, shim_stage_of(c, r),
                   (size_t)(n * size));
        break;
    case SHIM_REDUCE_SCATTER:
        sum_piece(c, part, n, c->rank);
        break;
    case SHIM_ALL_REDUCE:
        sum_piece(c, part, n, 0);
        break;
    default:
        memmove(part->recv + part->first * size, shim_stage_of(c, part->call.root),
                (size_t)(n * size));
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

static bool poll_collective(struct ncclComm *c, shim_work *work)
{
    shim_part *part = work->part;
    shim_member *me = shim_member_of(c, c->rank);
    for (;;) {
        switch (work->phase) {
        case ARRIVE:
            part->call.number = ++c->calls;
            part->first = 0;
            me->now = part->call;
            atomic_store(&me->arrived, c->calls);
            work->phase = COMPARE;
            break;
        case COMPARE:
            if (!all_reached(c, offsetof(shim_member, arrived), part->call.number))
                return false;
            if (!all_called_the_same(c, &part->call))
                return false;
            work->phase = WRITE;
            break;
        case WRITE:
            if (part->call.count > 0 && !part->call.hollow)
                write_piece(c, part);
            atomic_fetch_add(&me->wrote, 1);
            work->phase = READ;
            break;
        case READ:
            if (!all_reached(c, offsetof(shim_member, wrote), atomic_load(&me->wrote)))
                return false;
            if (part->call.count > 0 && !part->call.hollow)
                read_piece(c, part);
            atomic_fetch_add(&me->read, 1);
            work->phase = AGAIN;
            break;
        default: /* AGAIN: the stage is used for the next piece when all have read this one */
            if (!all_reached(c, offsetof(shim_member, read), atomic_load(&me->read)))
                return false;
            part->first += part->call.count > 0 ? elements_now(c, part) : 0;
            work->phase = WRITE;
            if (part->first < part->call.count)
                break;
            shim_record(c, &part->call, bytes_from_others(c, &part->call));
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

/* A send is done when the other rank has taken all of it, so that a rank does not continue if its
 * message is not received. */
static void poll_send(struct ncclComm *c, shim_part *part)
{
    shim_mail *mail = shim_mail_of(c, c->rank, part->peer);
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
    int64_t n = mail_now(part);
    if (!part->call.hollow)
        memcpy(mail->bytes, part->send + part->first, (size_t)n);
    part->first += n;
    atomic_fetch_add(&mail->put, 1);
}

static void poll_recv(struct ncclComm *c, shim_part *part)
{
    shim_mail *mail = shim_mail_of(c, part->peer, c->rank);
    if (atomic_load(&mail->put) == atomic_load(&mail->got))
        return;
    if (!part->begun) {
        part->call.number = part->number;
        if (mail->now.count != part->call.count || mail->now.type != part->call.type ||
            mail->now.number != part->call.number || mail->now.hollow != part->call.hollow) {
            shim_differ(c, c->rank, &part->call, part->peer, &mail->now);
            return;
        }
    }
    part->begun = true;
    int64_t n = mail_now(part);
    if (!part->call.hollow)
        memcpy(part->recv + part->first, mail->bytes, (size_t)n);
    part->first += n;
    part->done = is_last(part);
    atomic_fetch_add(&mail->got, 1);
    if (part->done)
        shim_record(c, &part->call, bytes_from_others(c, &part->call));
}

/* Whether part i may run: messages between two ranks run in the order of the calls. */
static bool is_next(const shim_work *w, int i)
{
    for (int k = 0; k < i; k++)
        if (!w->part[k].done && w->part[k].peer == w->part[i].peer &&
            w->part[k].call.kind == w->part[i].call.kind)
            return false;
    return true;
}

static bool poll_messages(struct ncclComm *c, shim_work *work)
{
    bool done = true;
    for (int i = 0; i < work->count; i++) {
        shim_part *part = &work->part[i];
        if (!part->done && is_next(work, i)) {
            if (part->call.kind == SHIM_SEND)
                poll_send(c, part);
            else
                poll_recv(c, part);
        }
        done &= part->done;
    }
    return done;
}

static void begin_work(shim_work *work)
{
    struct ncclComm *c = work->comm;
    work->phase = ARRIVE;
    for (int i = 0; i < work->count; i++) {
        shim_part *part = &work->part[i];
        part->begun = part->done = false;
        part->first = 0;
        if (part->call.kind == SHIM_SEND)
            part->number = ++c->sent[part->peer];
        else if (part->call.kind == SHIM_RECV)
            part->number = ++c->received[part->peer];
    }
}

bool shim_poll(void *work, bool first)
{
    shim_work *w = work;
    struct ncclComm *c = w->comm;
    if (atomic_load(&c->aborted) || atomic_load(&c->revoked))
        return true;
    if (w->before && w->before->runs <= w->runs) { /* it may not begin yet */
        w->phase = -1;
        return false;
    }
    if (first || w->phase == -1)
        begin_work(w);
    if (atomic_load(&c->shared->differs))
        return false; /* it never ends, until the communicator is aborted */
    bool done = w->part[0].call.kind >= SHIM_SEND ? poll_messages(c, w) : poll_collective(c, w);
    w->runs += done;
    return done;
}
