/* SPDX-License-Identifier: Apache-2.0 */
/* sim_memory.c: see sim_memory.h. */
#include "tests/sim/common/sim_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIM_MEMORY_NONE
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SIM_MEMORY_NONE
#endif
#endif

#ifdef SIM_MEMORY_NONE

int64_t sim_memory_blocks(void)
{
    return 0;
}

int64_t sim_memory_refuse(int64_t nth)
{
    return nth;
}

bool sim_memory_hold(bool held)
{
    return held;
}

#else

/* The C library's own. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

enum {
    SPOILED_BYTES = 128, /* of a block, at most: long ones would take too much time */
    GIVEN = 0x5a,
    FREED = 0xa5,
};

static int64_t blocks, refuse_at;
static bool is_held;

int64_t sim_memory_refuse(int64_t nth)
{
    const int64_t was = refuse_at;
    refuse_at = nth;
    return was;
}

bool sim_memory_hold(bool held)
{
    const bool was = is_held;
    is_held = held;
    return was;
}

/* Whether this request is the one to be refused. The JSON library reads on where it got no memory,
 * so the next that is another's takes its place. */
static bool is_refused(const void *caller)
{
    Dl_info where;
    if (refuse_at == 0 || is_held || --refuse_at > 0)
        return false;
    const bool yajl = dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, "yajl");
    refuse_at = yajl;
    return !yajl;
}

int64_t sim_memory_blocks(void)
{
    return blocks;
}

static void *spoil(void *block, size_t size, int with)
{
    if (block)
        memset(block, with, size < SPOILED_BYTES ? size : SPOILED_BYTES);
    return block;
}

void *malloc(size_t size)
{
    void *block = is_refused(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
    blocks += block != NULL;
    return spoil(block, size, GIVEN);
}

void *calloc(size_t count, size_t size)
{
    void *block = is_refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
    blocks += block != NULL;
    return block;
}

void *realloc(void *block, size_t size)
{
    if (size > 0 && is_refused(__builtin_return_address(0)))
        return NULL;
    void *moved = __libc_realloc(block, size);
    blocks += (moved != NULL) - (block != NULL && (moved != NULL || size == 0));
    return moved;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    void *block = is_refused(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
    blocks += block != NULL;
    return block;
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    void *block = aligned_alloc(alignment, size);
    if (!block)
        return ENOMEM;
    *out = block;
    return 0;
}

void free(void *block)
{
    if (!block)
        return;
    blocks--;
    spoil(block, malloc_usable_size(block), FREED);
    __libc_free(block);
}

#endif
