/* host_states.h: keeps the optimiser's moments in host memory (memory.host). For its update a
 * unit's states are copied to one of two buffers on the device, and afterwards back.
 *
 *   host_states_begin    before the first unit of a step
 *   host_states_enter    begins to fetch the next unit's states, and waits for this one's
 *   (the update, which finds them where host_states_move says)
 *   host_states_leave    begins to copy them back
 *   host_states_end      after the last unit: what is queued next finds all states on the host
 *
 * One stream fetches and another copies back, so that both directions of the link are used while
 * the device computes. Units come in falling order of number. They use the two buffers in turn, by
 * the parity of their numbers, like those of parallel/fsdp.h, so addresses are fixed and a step may
 * be captured. On the CPU all copies happen at once. The update itself is the same, to the bit. */
#ifndef TESSERA_TRAINER_OPTIM_HOST_STATES_H
#define TESSERA_TRAINER_OPTIM_HOST_STATES_H

#include "trainer/model/params.h"
#include "trainer/ops/loss_ops.h"

typedef struct host_states host_states;

/* Takes the buffers. `registry` is borrowed and has moments_on_host; it has been allocated.
 * ST_NO_MEMORY. */
WARN_UNUSED status host_states_new(params *registry, device *dev, host_states **out);
void host_states_free(host_states **states, device *dev); /* accepts a pointer to NULL */

/* Changes the addresses of `tensor`, which is of this row, to those in the buffer of its unit. */
void host_states_move(const host_states *states, const param *row, optim_tensor *tensor);

/* `queue` is the stream of the updates, the same one from begin to end. */
WARN_UNUSED status host_states_begin(host_states *states, stream *queue);
WARN_UNUSED status host_states_enter(host_states *states, stream *queue, int unit);
WARN_UNUSED status host_states_leave(host_states *states, stream *queue, int unit);
WARN_UNUSED status host_states_end(host_states *states, stream *queue);

#endif
