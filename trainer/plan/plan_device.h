/* plan_device.h: the device that memory is planned for: how much it has and how large elements are
 * on it. How fast it is stands in rates.h.
 *
 * A CPU and a GPU are two devices of the same plan. A GPU keeps bf16 beside fp32, has a batch on
 * its way while another is computed with, and loses memory to its driver, libraries and graphs
 * (memory_gpu.h); what a run holds of the host's memory is another memory there. On the CPU
 * everything is float32 and all of it is the host's. */
#ifndef TESSERA_TRAINER_PLAN_DEVICE_H
#define TESSERA_TRAINER_PLAN_DEVICE_H

#include "common/conf/conf.h"
#include "trainer/device/backend.h"

typedef struct plan_device {
    char name[128];              /* "H200", "CPU": what stands in the plan's heading */
    const backend_vtable *sizes; /* element sizes and properties; never opened */
    double memory;               /* bytes that its driver offers; memory.limit is a share of them */
    int multiprocessors;         /* of a GPU: its context grows with them */
} plan_device;

/* What --device takes, for usages and refusals. */
#define PLAN_DEVICE_NAMES "h100, h200, b200, cpu, or a GPU's memory in bytes"

bool plan_device_is_cpu(const plan_device *p);
/* By one of PLAN_DEVICE_NAMES; ST_USAGE for another. cpu: the CPU of this machine. */
WARN_UNUSED status plan_device_named(const char *name, plan_device *out);
/* The device that a run has opened. Of one that has shapes alone (device/shapes.h): a GPU of the
 * memory that it was opened with. */
WARN_UNUSED status plan_device_opened(device *d, plan_device *out);
/* What a run of this configuration would find here: the CPU where training.backend says so, else
 * the first GPU. Without a GPU it is the H200, which the shipped configurations are for, and
 * *out_why says so; else "". No context is made. */
enum { PLAN_DEVICE_WHY = 160 };
WARN_UNUSED status plan_device_here(const conf *c, plan_device *out, char out_why[PLAN_DEVICE_WHY]);

#endif
