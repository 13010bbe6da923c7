/* SPDX-License-Identifier: Apache-2.0 */
/* emulated.h: an asynchronous device on the host, as strict as a GPU and as late as possible:
 * nothing that is queued happens before something waits for it. It is for tests of code that must
 * not depend on when the device does its work.
 *
 * Its work is done by the CPU's ops. They are queued with copies of their arguments and run when an
 * event or a stream is waited for, in the order of each stream. So a host buffer that is
 * overwritten too early is read with its new contents, and a stream that fails to follow another
 * reads what is not there yet; both give wrong results every time, where a GPU gives them now and
 * then.
 *
 * A graph keeps what was queued and runs it again with the arguments of the capture. Streams that
 * follow an event of a captured stream are captured with it, and must be joined again. While a
 * stream is captured, allocations, waits, and copies from or to memory that is not pinned are
 * refused, as CUDA refuses them. The device's clock, which events read, advances by a microsecond
 * for each thing done. */
#ifndef TESSERA_TESTS_EMULATED_H
#define TESSERA_TESTS_EMULATED_H

#include "trainer/device/backend.h"
#include "tests/emulated/emulated_handle.h"

enum { EMULATED_MULTIPROCESSORS = 132 /* an H200's */ };

/* Opens a device; close it with device_close. ahead: how many steps may be queued beside the one
 * that is reported. graphs: whether it can capture. */
WARN_UNUSED status emulated_open(int ahead, bool graphs, device **out);

/* Breaks ways of a choice (device/choices.h), bit W of `ways` being way W: from use number `after`
 * on ops fail when they are called, and captures when they end; with `memory` as if there were none
 * left. The device does not choose unless its `choices` are filled. */
void emulated_break(device *dev, int choice, unsigned ways, int64_t after, bool memory);

/* From now on an allocation of exactly so many bytes fails. */
void emulated_refuse(device *dev, size_t bytes);

/* How many nodes the graph captured last has: calls of ops, copies, zeroings. */
int64_t emulated_captured(const device *dev);

#endif
