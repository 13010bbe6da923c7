/* module.h: libraries of ours that are opened when a run wants them (CUDA backend, engines of
 * collectives), so that one program starts on machines that have neither driver nor MPI.
 *
 * A library cannot see the program's symbols. Notes of failures are kept, and events are told, by
 * the program's functions, handed over at the start, so that FAIL, TRY and log_info mean the same
 * on both sides: each library is linked with module_inside.c in place of common/base/status.c and
 * log.c. */
#ifndef TESSERA_COMMON_PROGRAM_MODULE_H
#define TESSERA_COMMON_PROGRAM_MODULE_H

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of common/base/status.h and common/program/log.h. */
typedef struct module_host {
    status (*fail)(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...);
    status (*context)(status code, const char *fmt, ...);
    const char *(*text)(void);
    void (*clear)(void);
    void (*log)(int level, const char *fmt, ...);
} module_host;

/* The function `symbol` of ../lib/FILE, seen from the folder of this program. The library stays
 * open. what ("CUDA backend") and where_built ("where nvcc is found") are words for ST_UNAVAILABLE.
 * Every such function takes a module_host first. */
WARN_UNUSED status module_open(const char *file, const char *symbol, const char *what,
                               const char *where_built, void **out_function);
/* The path of such a library, for a caller that does not open it here. */
WARN_UNUSED status module_find(const char *file, const char *what, const char *where_built,
                               char *out, size_t size);
const module_host *module_program(void);

/* Called inside a library, first: from here on failures and events go to the program. */
void module_enter(const module_host *program);

#ifdef __cplusplus
}
#endif

#endif
