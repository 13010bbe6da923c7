/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.c: the implementation of fiber.h. On x86-64 a switch is twelve moves of registers.
 * Elsewhere, and under AddressSanitizer (which also clears the stack's shadow at each switch), it
 * is swapcontext, which makes a system call and is a hundred times slower. */
#include "tests/simt/fiber.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifdef ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    GUARD = 4096,     /* a page below each stack that cannot be accessed */
    STACK = 128 << 10 /* kernels need little of it, but AddressSanitizer's frames are large */
};

struct fiber {
#ifdef __x86_64__
    void *sp; /* the stack pointer while another fiber runs */
#else
    ucontext_t context;
#endif
    void (*body)(void);
    void *stack; /* the mapping, guard page included */
    const void *bottom;
    size_t size;
#ifdef ASAN
    void *fake; /* AddressSanitizer's second stack, while another fiber runs */
#endif
};

/* The stack that the process began with. Its bounds become known at the first switch. */
static fiber process;
static fiber *came_from;

/* Must be called first after a switch, on the new stack. */
static void arrived(fiber *self)
{
#ifdef ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self->fake, &bottom, &size);
    if (came_from == &process) {
        process.bottom = bottom;
        process.size = size;
    }
#else
    (void)self;
#endif
}

static fiber *entering;

static void enter_body(void)
{
    fiber *self = entering;
    arrived(self);
    self->body();
    abort(); /* fiber.h: body never returns */
}

#ifdef __x86_64__

/* Saves on the stack that is left what a call must preserve, and restores it from the stack that is
 * entered. */
void simt_swap(void **left, void *entered);
__asm__(".text\n"
        ".type simt_swap, @function\n"
        "simt_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_swap, .-simt_swap\n");

enum { KEPT = 6 };

static bool prepare_stack(fiber *self)
{
    /* The stack is made to look as if `enter` had been called: a return address above its own
     * frame. */
    void **top = (void **)((char *)self->bottom + self->size);
    top[-1] = NULL;
    *(void (**)(void))(top - 2) = enter_body;
    self->sp = top - 2 - KEPT;
    return true;
}

static void swap_fibers(fiber *from, fiber *to)
{
    simt_swap(&from->sp, to->sp);
}

#else

static bool prepare_stack(fiber *self)
{
    if (getcontext(&self->context) != 0)
        return false;
    self->context.uc_stack.ss_sp = (void *)self->bottom;
    self->context.uc_stack.ss_size = self->size;
    makecontext(&self->context, enter_body, 0);
    return true;
}

static void swap_fibers(fiber *from, fiber *to)
{
    swapcontext(&from->context, &to->context);
}

#endif

fiber *fiber_new(void (*body)(void))
{
    fiber *self = calloc(1, sizeof *self);
    void *stack =
        mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!self || stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) != 0)
        goto failed;
    self->stack = stack;
    self->bottom = (char *)stack + GUARD;
    self->size = STACK;
    self->body = body;
    if (!prepare_stack(self))
        goto failed;
    return self;
failed:
    fprintf(stderr, "simt: out of memory for a fiber\n");
    abort();
}

void fiber_free(fiber *self)
{
    if (!self)
        return;
#ifdef ASAN
    __asan_unpoison_memory_region(self->bottom, self->size); /* frames on it never returned */
#endif
    munmap(self->stack, GUARD + STACK);
    free(self);
}

void fiber_switch(fiber *from, fiber *to)
{
    from = from ? from : &process;
    to = to ? to : &process;
    came_from = from;
    entering = to;
#ifdef ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
    swap_fibers(from, to);
    arrived(from);
}
