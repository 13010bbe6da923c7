/* SPDX-License-Identifier: Apache-2.0 */
/* link_answer.c: the answers of link_core.h, and what is done to a connection. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/core/link_state.h"

void link_begin(link_core *core, link_now now)
{
    assert(core->taken == core->n_actions); /* the shell takes all before the next event */
    for (int i = 0; i < core->n_kept; i++)
        free(core->kept[i]);
    core->n_kept = core->n_actions = core->taken = 0;
    core->now = now;
}

void link_answer(link_core *core, link_action action)
{
    assert(core->n_actions < core->action_room);
    core->action[core->n_actions++] = action;
}

bool link_core_next(link_core *core, link_action *out)
{
    if (core->taken == core->n_actions)
        return false;
    *out = core->action[core->taken++];
    return true;
}

const char *link_keep(link_core *core, const char *text)
{
    char *copy = strdup(text);
    if (!copy || core->n_kept == core->action_room) {
        free(copy);
        return "there is no memory for the reason";
    }
    core->kept[core->n_kept++] = copy;
    return copy;
}

void link_send(link_core *core, int conn, rank_link_kind kind, const void *bytes, size_t size)
{
    link_answer(
        core, (link_action){
                  .kind = LINK_SEND, .conn = conn, .message = kind, .bytes = bytes, .size = size});
}

void link_drop(link_core *core, int conn)
{
    link_conn *const gone = &core->conn[conn];
    if (gone->state == CONN_PEER)
        core->peer[gone->peer].conn = -1;
    free(gone->in);
    *gone = (link_conn){.state = CONN_NONE};
    link_answer(core, (link_action){.kind = LINK_CLOSE, .conn = conn});
}

void link_refuse(link_core *core, int conn, const char *why)
{
    link_conn *const refused = &core->conn[conn];
    const size_t size = strlen(why);
    if (refused->state == CONN_PEER)
        core->peer[refused->peer].conn = -1;
    link_send(core, conn, CONTROL_REFUSE, why, size < CONTROL_TEXT_MAX ? size : CONTROL_TEXT_MAX);
    link_answer(core, (link_action){.kind = LINK_FINISH, .conn = conn});
    refused->state = CONN_REFUSED;
    refused->until_ns = core->now.ns + HELLO_NS;
    refused->n_in = 0;
}

bool link_peers_wait(const link_core *core, const link_peer *but)
{
    for (int i = 0; i < core->n_peers; i++)
        if (&core->peer[i] != but && core->peer[i].conn >= 0 && core->peer[i].waits)
            return true;
    return false;
}

bool link_is_heard(const link_core *core, const link_peer *peer)
{
    enum { BEATS = 3 };
    return core->now.ns - peer->heard_ns <= BEATS * core->beat_ns;
}
