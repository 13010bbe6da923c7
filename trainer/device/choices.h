/* SPDX-License-Identifier: Apache-2.0 */
/* choices.h: the pieces of a step that a device can do in more than one way, and the way in which
 * it does each of them.
 *
 *   choice                              ways, the preferred one first
 *   attention of text and of vision,    cuDNN; cuDNN with the next of its engines; our portable
 *   forward and backward                kernels
 *   the experts' products               Hopper's kernel; the portable one
 *   graphs                              captured as cuda_graph.scope says; nothing is captured
 *
 * A backend fills the struct when it opens a device. run/session_parts.h tries every way before step 1 and
 * moves all ranks to the next one where one of them cannot; after that nothing changes. */
#ifndef TESSERA_TRAINER_DEVICE_CHOICES_H
#define TESSERA_TRAINER_DEVICE_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The order of the attentions is that of choice_attention. */
enum {
    CHOICE_TEXT_FORWARD,
    CHOICE_TEXT_BACKWARD,
    CHOICE_VISION_FORWARD,
    CHOICE_VISION_BACKWARD,
    CHOICE_EXPERTS,
    CHOICE_GRAPHS,
    CHOICES
};

enum { ATTENTION_BY_CUDNN, ATTENTION_BY_NEXT_ENGINE, ATTENTION_BY_OURS };
enum { EXPERTS_BY_HOPPER, EXPERTS_BY_PORTABLE };
enum { GRAPHS_CAPTURED, GRAPHS_NONE };

/* All zero on a device that has one way for everything. */
typedef struct device_choices {
    bool open; /* there is something to choose */
    /* An op fails where it would otherwise take another way for a shape that its own way has no
     * kernel for: during the trial. */
    bool strict;
    uint8_t way[CHOICES];  /* the one in use */
    uint8_t last[CHOICES]; /* the one after which there is no other */
    /* Bits 1 << choice: some calls of this attention are our own kernels', whatever the way in use:
     * those that they are faster for, and those that cuDNN cannot express. That is no fallback.
     * choices_text has what is known when it is written, before step 1: what the options say, and
     * what the trial has met. */
    uint8_t also_ours;
} device_choices;

/* What a device can do, as its backend finds it. */
typedef struct choice_facts {
    bool cudnn, hopper;
} choice_facts;

/* Fills *out. attention and experts are ATTENTION_* and EXPERTS_* of conf.h: a way that is named
 * there is kept, and only auto has others to fall back on. */
void choices_make(int attention, int experts, choice_facts facts, device_choices *out);

/* Makes attention use our own kernels, for a device that cannot have cuDNN's. */
void choices_without_cudnn(device_choices *inout);
/* Whether a backward pass of attention uses cuDNN's kernels. */
bool choices_have_cudnn(const device_choices *made);

/* Attention by cuDNN needs a GPU of this compute capability, times ten, or a later one. */
enum { CHOICE_CUDNN_SM = 90 };
/* ST_UNAVAILABLE, with the reason, for a GPU before that. */
WARN_UNUSED status choices_check_cudnn(int sm);

/* Which of the choices a call of attention belongs to. Text is causal and vision is not. */
static inline int choice_attention(bool causal, bool backward)
{
    return (causal ? CHOICE_TEXT_FORWARD : CHOICE_VISION_FORWARD) + backward;
}

/* The choice in words ("attention of text, forward"), a way in a word ("cudnn"), and what to set to
 * ask for the last way from the beginning ("training.attention portable"). */
const char *choice_name(int choice);
const char *choice_way(int choice, int way);
const char *choice_remedy(int choice);

/* Writes all ways in use in one line, for ledger and checkpoint: "text_forward=cudnn ..
 * graphs=SCOPE deterministic=B"; "cudnn+portable" where our own kernels take some shapes. scope:
 * what is captured, as cuda_graph.scope has it. "" if there is nothing to choose. */
enum { CHOICES_TEXT = 512 };
void choices_text(const device_choices *made, const char *scope, bool deterministic,
                  char out[CHOICES_TEXT]);
/* Calls `each` for every word of `now` that has another value in `was`. "cudnn+portable" is no
 * other one than "cudnn", which is all that older checkpoints say of both; the other way round it
 * is. */
typedef void (*choice_change)(void *user, const char *key, const char *was, const char *now);
void choices_changes(const char *was, const char *now, choice_change each, void *user);

/* wanted: EXPERTS_* of conf.h. sm: the GPU's compute capability times ten. *out_hopper is whether
 * Hopper's kernel runs, or else the portable one. ST_UNAVAILABLE if Hopper's is wanted by name and
 * the GPU is another one. */
WARN_UNUSED status experts_choose(int wanted, int sm, bool *out_hopper);

#ifdef __cplusplus
}
#endif

#endif
