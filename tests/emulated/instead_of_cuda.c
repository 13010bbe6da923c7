/* SPDX-License-Identifier: Apache-2.0 */
/* instead_of_cuda.c: a program that links this file with --wrap=device_open gets the emulated
 * device when it asks for CUDA. The device has the name of an H200, queues one step besides the one
 * that is reported, captures steps, and chooses like a Hopper GPU with cuDNN.
 *
 * SIGUSR2 makes the thread that trains hang at its next copy to the device, while the other threads
 * of the process go on.
 *
 * TESSERA_EMULATED_BROKEN="RANK:CHOICE:WAYS:AFTER .." breaks ways of a rank's device
 * (emulated_break), followed by ":memory" if they lack memory; "RANK:none" takes cuDNN and
 * Hopper's kernel away from it, and "RANK:never:BYTES" allocations of this size (emulated_refuse).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf/conf.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"

status __real_device_open(int kind, const device_options *options, device **out);
status __wrap_device_open(int kind, const device_options *options, device **out);

static void break_ways(const device_options *options, device *dev)
{
    const char *list = getenv("TESSERA_EMULATED_BROKEN");
    choice_facts facts = {.cudnn = true, .hopper = true};
    for (const char *word = list; word && *word; word += strcspn(word, " "), word += *word == ' ') {
        int rank, choice, ways, after, bytes, used = 0;
        if (sscanf(word, "%d:none%n", &rank, &used) == 1 && used > 0 && rank == options->index)
            facts = (choice_facts){0};
        else if (sscanf(word, "%d:%d:%d:%d%n", &rank, &choice, &ways, &after, &used) == 4 &&
                 rank == options->index)
            emulated_break(dev, choice, (unsigned)ways, after, word[used] == ':');
        else if (sscanf(word, "%d:never:%d", &rank, &bytes) == 2 && rank == options->index)
            emulated_refuse(dev, (size_t)bytes);
    }
    choices_make(options->attention, options->experts, facts, &dev->choices);
}

static volatile sig_atomic_t hangs;
static backend_vtable can_hang;
static status (*copy_to_device)(stream *queue, void *dst, const void *src, size_t bytes);

static void on_signal(int number)
{
    (void)number;
    hangs = 1;
}

static status copy_or_hang(stream *queue, void *dst, const void *src, size_t bytes)
{
    while (hangs)
        pause();
    return copy_to_device(queue, dst, src, bytes);
}

status __wrap_device_open(int kind, const device_options *options, device **out)
{
    device *dev;
    size_t total;
    if (kind != BACKEND_CUDA)
        return __real_device_open(kind, options, out);
    TRY(emulated_open(1, true, &dev));
    break_ways(options, dev);
    can_hang = *dev->backend;
    copy_to_device = can_hang.to_device;
    can_hang.to_device = copy_or_hang;
    dev->backend = &can_hang;
    signal(SIGUSR2, on_signal);
    snprintf(dev->description, sizeof dev->description, "NVIDIA H200, emulated%s",
             options->collectives ? DEVICE_BESIDE_COLLECTIVES : "");
    *out = dev;
    return dev->backend->memory(dev, &dev->used_at_open, &total);
}
