/* fiber.h: stacks that hand the processor to each other. Switches are announced to
 * AddressSanitizer, which else takes a frame on another stack for a stray access. */
#ifndef TESSERA_TESTS_SIMT_FIBER_H
#define TESSERA_TESTS_SIMT_FIBER_H

typedef struct fiber fiber;

/* A fiber that runs body when first switched to; body never returns. Aborts without memory. */
fiber *fiber_new(void (*body)(void));
/* Also in the middle of its body; not from inside it. */
void fiber_free(fiber *f);

/* From one to the other; returns when somebody switches back. NULL: the process's own stack. */
void fiber_switch(fiber *from, fiber *to);

#endif
