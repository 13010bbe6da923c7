/* SPDX-License-Identifier: Apache-2.0 */
/* plan_device.c: the table of cards, whose sources trainer/plan/time.md names; and the device, by
 * name, from an open one, or from the driver of this machine. */
#include "trainer/plan/plan_device.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/words.h"
#include "trainer/device/choices.h"
#include "trainer/device/host_memory.h"
#include "trainer/device/nvml.h"
#include "trainer/ops/open.h"

/* A size counts as that of a card if it is within this share of the nominal one. What a driver
 * offers, or a size in GiB for one in GB, differs by at most 8 %. */
static const double NEAR = 0.2;

/* Of cards of one size, the first is taken where only the size is known. A B200's NVLink is twice
 * as fast as an H200's, an A100's two thirds as fast. Cards without it have PCIe for everything:
 * 25 GB/s are assumed of the 32 of PCIe 4.0 x16, 50 of the 63 of 5.0. Bridges that join a few
 * cards for PCIe are not counted. */
static const gpu_card cards[] = {
    {"h200", "H200", 141, 139.7, 132, 90, 989e12, 4800e9, 0, 0, true},
    {"h100", "H100", 80, 79.1, 132, 90, 989e12, 3350e9, 0, 0, true},
    {"b200", "B200", 180, 178.3, 148, 100, 2250e12, 8000e9, 674e9, 50e9, false},
    {"h200-nvl", "H200 NVL", 141, 139.7, 132, 90, 836e12, 4800e9, 50e9, 50e9, false},
    {"h100-nvl", "H100 NVL", 94, 93.1, 132, 90, 836e12, 3900e9, 50e9, 50e9, false},
    {"h100-pcie", "H100 PCIe", 80, 79.1, 114, 90, 756e12, 2000e9, 50e9, 50e9, false},
    {"a100", "A100", 80, 79.1, 108, 80, 312e12, 2039e9, 225e9, 25e9, false},
    {"a100-40", "A100", 40, 39.4, 108, 80, 312e12, 1555e9, 225e9, 25e9, false},
    {"l40s", "L40S", 48, 44.4, 142, 89, 362e12, 864e9, 25e9, 25e9, false},
    {"rtx6000ada", "RTX 6000 Ada", 48, 47.5, 142, 89, 364.2e12, 960e9, 25e9, 25e9, false},
    {"a6000", "RTX A6000", 48, 47.5, 84, 86, 154.8e12, 768e9, 25e9, 25e9, false},
    {"rtx4090", "RTX 4090", 24, 23.6, 128, 89, 165.2e12, 1008e9, 25e9, 25e9, false},
    {"rtx3090", "RTX 3090", 24, 23.6, 82, 86, 71e12, 936e9, 25e9, 25e9, false},
    {"a10g", "A10G", 24, 22.1, 80, 86, 70e12, 600e9, 25e9, 25e9, false},
    {"l4", "L4", 24, 22.0, 58, 89, 121e12, 300e9, 25e9, 25e9, false},
};
enum { CARDS = sizeof cards / sizeof *cards };

/* How far a size is from the card's, as a share of that. */
static double distance(const gpu_card *card, double bytes)
{
    return fabs(bytes * 1e-9 / card->gb - 1.0);
}

/* Whether the text has the name as whole words: "L4" is not in "L40S". */
static bool names(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[length]))
            return true;
    return false;
}

const gpu_card *gpu_card_named(const char *word)
{
    for (int i = 0; i < CARDS; i++)
        if (strcasecmp(word, cards[i].word) == 0)
            return &cards[i];
    return NULL;
}

const gpu_card *gpu_card_described(const char *description, double bytes)
{
    const gpu_card *found = NULL;
    for (int i = 0; i < CARDS; i++) {
        const gpu_card *card = &cards[i];
        if (!names(description, card->name))
            continue;
        const size_t length = strlen(card->name), known = found ? strlen(found->name) : 0;
        if (length > known || (length == known && distance(card, bytes) < distance(found, bytes)))
            found = card;
    }
    return found && distance(found, bytes) <= NEAR ? found : NULL;
}

const gpu_card *gpu_card_nearest(double bytes)
{
    const gpu_card *found = &cards[0];
    for (int i = 1; i < CARDS; i++)
        if (distance(&cards[i], bytes) < distance(found, bytes))
            found = &cards[i];
    return distance(found, bytes) <= NEAR ? found : NULL;
}

/* Writes all words, separated by ", ". */
enum { GPU_CARD_WORDS = 256 };
static const char *gpu_card_words(char out[GPU_CARD_WORDS])
{
    size_t length = 0;
    out[0] = 0;
    for (int i = 0; i < CARDS && length < GPU_CARD_WORDS; i++)
        length += (size_t)snprintf(out + length, GPU_CARD_WORDS - length, "%s%s", i ? ", " : "",
                                   cards[i].word);
    return out;
}

static const double GIB = 1073741824.0;

/* Element sizes of the CUDA backend. They are repeated here because that backend is only built on a
 * machine with CUDA's toolkit. */
static const backend_vtable gpu_sizes = {.name = "cuda",
                                         .act = DT_BF16,
                                         .acc = DT_F32,
                                         .fixed_shapes = true,
                                         .overhead = true,
                                         .ahead = 1};

/* What is assumed of a GPU that no known card is like. */
static const char usual_card[] = "h200";

bool plan_device_is_cpu(const plan_device *on)
{
    return on->sizes == &backend_cpu;
}

void plan_device_share(plan_device *inout, int ranks)
{
    inout->usable *= (double)inout->sharers / (ranks > 1 ? ranks : 1);
    inout->sharers = ranks > 1 ? ranks : 1;
}

const char *plan_device_text(const plan_device *on, char out[PLAN_DEVICE_TEXT])
{
    const double unused = on->usable * on->sharers;
    int length = snprintf(out, PLAN_DEVICE_TEXT, "%.1f of %.1f GiB are free", unused / GIB,
                          on->memory / GIB);
    if (on->sharers > 1)
        snprintf(out + length, PLAN_DEVICE_TEXT - (size_t)length, ", for %d ranks: %.1f GiB each",
                 on->sharers, on->usable / GIB);
    return out;
}

static plan_device gpu_of(const char *name, double memory, const gpu_card *card)
{
    const gpu_card *like = card ? card : gpu_card_named(usual_card);
    plan_device on = {.sizes = &gpu_sizes,
                      .memory = memory,
                      .usable = memory,
                      .sharers = 1,
                      .multiprocessors = like->multiprocessors,
                      .sm = like->sm,
                      .cudnn = like->sm >= CHOICE_CUDNN_SM,
                      .card = card,
                      .host_ranks = 1};
    snprintf(on.name, sizeof on.name, "%s", name);
    return on;
}

plan_device plan_device_sized(double bytes)
{
    plan_device on = gpu_of("GPU", bytes, gpu_card_nearest(bytes));
    on.is_nearest = on.card != NULL;
    return on;
}

/* A GPU with the name that its driver gives it. */
static plan_device gpu_described(const char *description, double bytes)
{
    const gpu_card *card = gpu_card_described(description, bytes);
    plan_device on = card ? gpu_of(description, bytes, card) : plan_device_sized(bytes);
    snprintf(on.name, sizeof on.name, "%s", description);
    return on;
}

void plan_device_print_card(const plan_device *on, FILE *to)
{
    if (plan_device_is_cpu(on) || (on->card && !on->is_nearest))
        return;
    fprintf(to, "%s of %.1f GiB is not a card known by name; ", escape_text(on->name).text,
            on->memory / GIB);
    if (on->card)
        fprintf(to, "it is planned like the nearest in size, the %s of %.0f GB\n", on->card->name,
                on->card->gb);
    else
        fprintf(to, "no known card is about as large, so there are no rates for it%s\n",
                on->cudnn ? ", and memory is planned for cuDNN's attention, which takes most" : "");
}

/* What the host of a GPU of this machine has; not known if it does not say. */
static double host_of_gpu(void)
{
    host_memory host;
    if (host_memory_read("", &host) == ST_OK)
        return (double)host.available;
    status_clear();
    return 0;
}

static status this_cpu(plan_device *out)
{
    device *dev = NULL;
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    status st = plan_device_opened(dev, out, NULL);
    device_close(&dev);
    return st;
}

status plan_device_named(const char *name, plan_device *out)
{
    const gpu_card *card = gpu_card_named(name);
    char words[GPU_CARD_WORDS], *end;
    if (card) {
        *out = gpu_of(card->name, card->gib * GIB, card);
        return ST_OK;
    }
    if (strcasecmp(name, "cpu") == 0)
        return this_cpu(out);
    errno = 0;
    const long long bytes = strtoll(name, &end, 10);
    if (end == name || *end || errno || bytes <= 0)
        return FAIL(ST_USAGE, "--device %s: expected cpu, a GPU's memory in bytes, or one of %s",
                    name, gpu_card_words(words));
    *out = plan_device_sized((double)bytes);
    return ST_OK;
}

/* The compute capability that a GPU's description names (device/cuda_open.c): "NAME, sm_90, ..";
 * `other` if it names none. */
static int described_sm(const char *description, int other)
{
    static const char before[] = ", sm_";
    const char *at = strstr(description, before);
    return at ? atoi(at + strlen(before)) : other;
}

status plan_device_opened(device *dev, plan_device *out, plan_room *out_room)
{
    size_t used, total, available;
    plan_device on;
    TRY(dev->backend->memory(dev, &used, &total));
    TRY(dev->backend->available(dev, &available));
    if (dev->backend->immediate) {
        on = (plan_device){.name = "CPU", .sizes = &backend_cpu, .sharers = 1, .host_ranks = 1};
    } else {
        on = gpu_described(dev->description, (double)total);
        on.multiprocessors = dev->multiprocessors;
        on.sm = described_sm(dev->description, on.sm);
        on.cudnn = choices_have_cudnn(&dev->choices);
        on.name[strcspn(on.name, ",")] = 0;
        on.host = host_of_gpu();
    }
    /* `used` is this process's own on the CPU. Of a GPU it is everyone's: there the context is this
     * process's, and what was taken since, such as NCCL's buffers, if it has the GPU alone. */
    plan_room room = {.memory = (double)total, .available = (double)available, .own = (double)used};
    if (!dev->backend->immediate) {
        room.own = (double)dev->context_bytes;
        room.grown = used > dev->used_at_open ? (double)(used - dev->used_at_open) : 0.0;
    }
    on.memory = room.memory;
    on.usable = fmin(room.memory, room.available + room.own + room.grown);
    *out = on;
    if (out_room)
        *out_room = room;
    return ST_OK;
}

status plan_device_here(const conf *options, int ranks, plan_device *out,
                        char out_why[PLAN_DEVICE_WHY])
{
    nvml_gpu gpu;
    out_why[0] = 0;
    if (options->training_backend == BACKEND_CPU) {
        TRY(this_cpu(out));
        plan_device_share(out, ranks);
        return ST_OK;
    }
    if (nvml_first_visible(&gpu) == ST_OK) {
        *out = gpu_described(gpu.name, (double)gpu.memory);
        if (gpu.sm) {
            out->sm = gpu.sm;
            out->cudnn = gpu.sm >= CHOICE_CUDNN_SM;
        }
        out->usable = (double)gpu.unused;
        out->host = host_of_gpu();
        out->host_ranks = ranks > 1 ? ranks : 1;
        if (options->comm_engine ==
            ENGINE_MPI) /* the ranks take turns with the GPUs (session_device.c) */
            plan_device_share(out, (ranks + gpu.visible - 1) / gpu.visible);
        return ST_OK;
    }
    snprintf(out_why, PLAN_DEVICE_WHY, "no GPU was found here: %.300s; --device names another one",
             status_text());
    status_clear();
    return plan_device_named(usual_card, out);
}
