/* SPDX-License-Identifier: Apache-2.0 */
/* plan_device.h: the device that memory and time are planned for: how much memory it has, and how
 * large elements are on it; and the cards that are known by name, with the maker's figures from
 * which the rates of a card that nobody has measured are assumed (rates.h).
 *
 * The same plan serves a CPU and a GPU. A GPU keeps bf16 weights beside fp32 master values,
 * receives one micro-batch while it computes with another, and loses memory to its driver,
 * libraries and graphs (memory.h); the host's memory is separate from it. On the CPU everything is
 * float32 and there is only the host's memory. */
#ifndef TESSERA_TRAINER_PLAN_DEVICE_H
#define TESSERA_TRAINER_PLAN_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/conf/conf.h"
#include "trainer/device/backend.h"

typedef struct gpu_card {
    const char *word;    /* as --device has it: "rtx4090" */
    const char *name;    /* words of the name that its driver gives it: "RTX 4090" */
    double gb, gib;      /* nominal size in 10^9 bytes; what its driver offers, in GiB */
    int multiprocessors; /* how many */
    int sm;              /* compute capability, times ten */
    /* FLOP/s of dense BF16 products with float32 sums, and bytes/s of its memory: NVIDIA's figures
     */
    double peak, memory;
    double link, host; /* bytes/s: what a rank receives from others of its node; to the host */
    bool measured; /* has the chip of the H200, whose rates were measured; link and host are 0 */
} gpu_card;

/* The card with this word for --device, in any case of letters; NULL if there is none. */
const gpu_card *gpu_card_named(const char *word);
/* The card whose name is in a driver's description and whose size is about `bytes`, else NULL. Of
 * several, the longest name ("H100 PCIe" before "H100"), then the nearest size. */
const gpu_card *gpu_card_described(const char *description, double bytes);
/* The card whose size is nearest to `bytes`, the first of equal ones; NULL if none is about as
 * large. */
const gpu_card *gpu_card_nearest(double bytes);

typedef struct plan_device {
    char name[128];              /* "H200", "CPU"; printed in the plan's heading */
    int sm;                      /* compute capability of a GPU, times ten: 90 is 9.0 */
    bool cudnn;                  /* of a GPU: attention may run with cuDNN's kernels */
    const gpu_card *card;        /* the card whose rates a GPU has; NULL: none is like it */
    bool is_nearest;             /* .. since its size is about the same; its name is unknown */
    const backend_vtable *sizes; /* element sizes and properties; no device is opened with it */
    double memory;               /* bytes that the driver offers */
    double usable;               /* bytes of these for one rank; memory.limit is a share of them */
    int sharers;         /* ranks that share the device, each with an equal part; 1 or more */
    int multiprocessors; /* of a GPU, whose context grows with them */
    double host;         /* bytes of its host's memory that are available; 0: not known */
    int host_ranks;      /* ranks of the job on that host, which share these; 1 or more */
} plan_device;

/* What a device that is there has for the ranks that share it: what no other process holds. */
typedef struct plan_room {
    double memory;    /* bytes in all */
    double available; /* bytes that a process could still take */
    double own;       /* bytes that this rank has taken already, which its plan counts too */
    double grown;     /* bytes of a GPU taken since it was opened, by whom is not known */
} plan_room;

bool plan_device_is_cpu(const plan_device *device);
/* Divides what is usable among `ranks` that share the device, which are as many as `sharers` says
 * from now on. */
void plan_device_share(plan_device *inout, int ranks);
/* Writes how much of the device's memory a rank may use and why: "12.1 of 23.5 GiB are free". */
enum { PLAN_DEVICE_TEXT = 160 };
const char *plan_device_text(const plan_device *device, char out[PLAN_DEVICE_TEXT]);
/* The device that --device names: a card's word (gpu_card), "cpu", which is that of this
 * machine, or bytes of memory. ST_USAGE, with all names, for any other. */
WARN_UNUSED status plan_device_named(const char *name, plan_device *out);
/* A GPU of which only the memory is known. It has the kernels and the rates of the card whose size
 * is nearest, and without one the kernels that take most memory. */
plan_device plan_device_sized(double bytes);
/* Prints which card's rates and kernels a GPU is given that is no known card;
 * nothing for others. */
void plan_device_print_card(const plan_device *device, FILE *to);
/* The device that a run has opened, as if this rank had it alone. out_room
 * may be NULL. */
WARN_UNUSED status plan_device_opened(device *device, plan_device *out, plan_room *out_room);
/* The device that a run with these options would use on this machine: the CPU if training.backend
 * says so, otherwise the first GPU that it may see. ranks: of the job, on this machine, all of
 * which share the CPU; with comm.engine mpi several of them may share a GPU. If there is no GPU it
 * is an H200, for which the shipped configurations are made, and out_why gives the reason;
 * otherwise out_why is "". Asks the driver, without making a context. */
enum { PLAN_DEVICE_WHY = 512 };
WARN_UNUSED status plan_device_here(const conf *options, int ranks, plan_device *out,
                                    char out_why[PLAN_DEVICE_WHY]);

#endif
