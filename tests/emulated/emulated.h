/* emulated.h: an asynchronous device on the host, as strict as a GPU and later than any: nothing
 * that is queued happens before somebody waits for it. For tests of what must not depend on the
 * host.
 *
 * Work is the CPU's ops, copied with their arguments and run when an event or a stream is waited
 * for, each stream in its order. So a host buffer that is used again too early is read too late,
 * and a stream that does not follow another reads what is not there yet. Graphs keep what was
 * queued and run it again with the arguments of the capture; streams that follow an event of a
 * captured one are captured with it, and must be joined again. While one is captured, allocating,
 * waiting and copies from or to memory that is not pinned are refused, as CUDA does.
 * Its clock, which events read, goes on by a microsecond for each thing done. */
#ifndef TESSERA_TESTS_EMULATED_H
#define TESSERA_TESTS_EMULATED_H

#include "trainer/device/backend.h"
#include "trainer/device/emulated_handle.h"

/* ahead: steps under way. graphs: whether it can capture. */
WARN_UNUSED status emulated_open(int ahead, bool graphs, device **out);

/* What the graph captured last holds: calls of ops, copies, zeroings. */
int64_t emulated_captured(const device *d);

#endif
