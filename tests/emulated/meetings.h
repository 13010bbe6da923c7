/* SPDX-License-Identifier: Apache-2.0 */
/* meetings.h: how ranks that are processes meet on the emulated device (ops/peers.h). Memory of
 * other processes is in their windows. */
#ifndef TESSERA_TESTS_EMULATED_MEETINGS_H
#define TESSERA_TESTS_EMULATED_MEETINGS_H

#include "tests/emulated/queue.h"
#include "trainer/ops/peers.h"

/* It lives as long as the device, since a graph may run it again. */
typedef struct meeting meeting;

/* Makes the node of a meeting, which runs its ops on the stream `hands`, and adds the meeting to
 * the list. The node is polled, so that other streams make progress meanwhile. If nobody ends its
 * wait within the time that it may last, the process aborts, as a GPU's kernel would trap.
 * NO_MEMORY. */
WARN_UNUSED status meeting_new(const peers_meet_args *args, stream *hands, meeting **inout_list,
                               node *out);
void meetings_free(meeting **list);

#endif
