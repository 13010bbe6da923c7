/* fiber.c: fibers by ucontext (220 ns a switch, most of it the system call for the signal mask;
 * the largest cases make a few million). */
#include "tests/simt/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

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
    GUARD = 4096,     /* a page without access below each stack */
    STACK = 128 << 10 /* kernels keep little there; AddressSanitizer's frames are larger */
};

struct fiber {
    ucontext_t context;
    void (*body)(void);
    void *stack; /* of the mapping, the guard page included */
    const void *bottom;
    size_t size;
#ifdef ASAN
    void *fake; /* AddressSanitizer's second stack, while another fiber runs */
#endif
};

static fiber process; /* the stack this process began with; bounds are learnt at the first switch */
static fiber *came_from;

/* The first thing after a switch, on the new stack. */
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

static void enter(void)
{
    fiber *self = entering;
    arrived(self);
    self->body();
    abort(); /* fiber.h: body never returns */
}

fiber *fiber_new(void (*body)(void))
{
    fiber *f = calloc(1, sizeof *f);
    void *stack =
        mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!f || stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) != 0 ||
        getcontext(&f->context) != 0) {
        fprintf(stderr, "simt: no memory for a fiber\n");
        abort();
    }
    f->stack = stack;
    f->bottom = (char *)stack + GUARD;
    f->size = STACK;
    f->body = body;
    f->context.uc_stack.ss_sp = (char *)stack + GUARD;
    f->context.uc_stack.ss_size = STACK;
    makecontext(&f->context, enter, 0);
    return f;
}

void fiber_free(fiber *f)
{
    if (!f)
        return;
#ifdef ASAN
    __asan_unpoison_memory_region(f->bottom, f->size); /* frames it was left in */
#endif
    munmap(f->stack, GUARD + STACK);
    free(f);
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
    swapcontext(&from->context, &to->context);
    arrived(from);
}
