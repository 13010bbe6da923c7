/* plan_device.h: the device that memory is planned for: how much memory it has, and how large
 * elements are on it. rates.h says how fast it is.
 *
 * The same plan serves a CPU and a GPU. A GPU keeps bf16 weights beside fp32 master values,
 * receives one micro-batch while it computes with another, and loses memory to its driver,
 * libraries and graphs (memory_gpu.h); the host's memory is separate from it. On the CPU everything
 * is float32 and there is only the host's memory. */
#ifndef TESSERA_TRAINER_PLAN_DEVICE_H
#define TESSERA_TRAINER_PLAN_DEVICE_H

#include "common/conf/conf.h"
#include "trainer/device/backend.h"

typedef struct plan_device {
    char name[128];              /* "H200", "CPU"; printed in the plan's heading */
    const backend_vtable *sizes; /* element sizes and properties; no device is opened with it */
    double memory;               /* bytes that the driver offers; memory.limit is a share of them */
    int multiprocessors;         /* of a GPU, whose context grows with them */
} plan_device;

/* The values of --device, for messages. */
#define PLAN_DEVICE_NAMES "h100, h200, b200, cpu, or a GPU's memory in bytes"

bool plan_device_is_cpu(const plan_device *device);
/* The device with one of PLAN_DEVICE_NAMES; ST_USAGE for any other name. "cpu" is the CPU of this
 * machine. */
WARN_UNUSED status plan_device_named(const char *name, plan_device *out);
/* The device that a run has opened. A device without storage (device/shapes.h) counts as a GPU with
 * the memory it was opened with. */
WARN_UNUSED status plan_device_opened(device *device, plan_device *out);
/* The device that a run with these options would use on this machine: the CPU if training.backend
 * says so, otherwise the first GPU. If there is no GPU it is an H200, for which the shipped
 * configurations are made, and out_why says so; otherwise out_why is "". Asks the driver, without
 * making a context. */
enum { PLAN_DEVICE_WHY = 160 };
WARN_UNUSED status plan_device_here(const conf *c, plan_device *out, char out_why[PLAN_DEVICE_WHY]);

#endif
