/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.h: fibers, which are stacks that hand the processor to each other. Every switch is
 * announced to AddressSanitizer, which would otherwise take a frame on another stack for a stray
 * access. */
#ifndef TESSERA_TESTS_SIMT_FIBER_H
#define TESSERA_TESTS_SIMT_FIBER_H

typedef struct fiber fiber;

/* Makes a fiber that runs `body` when it is first switched to; `body` must never return. Aborts if
 * memory runs out. */
fiber *fiber_new(void (*body)(void));
/* Frees a fiber, even in the middle of its body, but not from inside it. */
void fiber_free(fiber *self);

/* Switches from one fiber to the other, and returns when some fiber switches back. NULL: the
 * process's own stack. */
void fiber_switch(fiber *from, fiber *to);

#endif
