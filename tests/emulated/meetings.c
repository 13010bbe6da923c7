/* SPDX-License-Identifier: Apache-2.0 */
/* meetings.c: the implementation of meetings.h. */
#include "tests/emulated/meetings.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "trainer/ops/table.h"

struct meeting {
    meeting *next;
    stream *hands;
    peers_meet_args args;
    int64_t since_ns; /* when its wait began, or began anew */
    int32_t anew;     /* of args.watch at that time */
};

static bool have_come(const peers_meet_args *args)
{
    const char *own = args->peers.base[args->peers.rank];
    const uint32_t *arrived = (const uint32_t *)(const void *)(own + args->arrived);
    const uint32_t turn = *(const uint32_t *)(const void *)(own + args->met) + 1;
    bool all = true;
    for (int32_t peer = 0; peer < args->peers.size; peer++)
        all &= (int32_t)(__atomic_load_n(&arrived[peer], __ATOMIC_ACQUIRE) - turn) >= 0;
    return all || (args->watch && __atomic_load_n(&args->watch->stop, __ATOMIC_RELAXED));
}

static void check_time(meeting *meet, bool first)
{
    const peer_watch *watch = meet->args.watch;
    const int32_t anew = watch ? __atomic_load_n(&watch->anew, __ATOMIC_RELAXED) : 0;
    const int64_t now_ns = clock_ns(),
                  longest_ns = watch ? __atomic_load_n(&watch->longest_ns, __ATOMIC_RELAXED)
                                     : PEERS_ALONE_NS;
    if (first || anew != meet->anew)
        meet->since_ns = now_ns;
    meet->anew = anew;
    if (now_ns - meet->since_ns <= longest_ns)
        return;
    fprintf(stderr, "emulated: nobody ended the wait of a meeting\n");
    abort();
}

static bool poll_meeting(void *work, bool first)
{
    meeting *meet = work;
    peers_meet_args args = meet->args;
    const bool needed = !args.rounds || args.round == 0 || args.round < args.rounds[0];
    args.phase = meet->args.phase & MEET_ARRIVE;
    if (first && meet->hands->ops->peers_meet(meet->hands, &args) != ST_OK)
        abort();
    args.phase = meet->args.phase & MEET_WAIT;
    if (!needed || !args.phase)
        return true;
    if (have_come(&args))
        return meet->hands->ops->peers_meet(meet->hands, &args) == ST_OK;
    check_time(meet, first);
    return false;
}

status meeting_new(const peers_meet_args *args, stream *hands, meeting **inout_list, node *out)
{
    meeting *meet = malloc(sizeof *meet);
    if (!meet)
        return FAIL(ST_NO_MEMORY, "emulated: no memory");
    *meet = (meeting){.next = *inout_list, .hands = hands, .args = *args};
    *inout_list = meet;
    *out = (node){.kind = NODE_OUTSIDE, .poll = poll_meeting, .work = meet};
    return ST_OK;
}

void meetings_free(meeting **list)
{
    for (meeting *next; *list; *list = next) {
        next = (*list)->next;
        free(*list);
    }
}
