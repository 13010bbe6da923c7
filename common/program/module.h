/* SPDX-License-Identifier: Apache-2.0 */
/* module.h: our own shared libraries that are opened only when a run needs them (the CUDA backend,
 * the engines of collectives, the image and video decoders), so that the programs also start on
 * machines without a GPU driver or MPI.
 *
 * Such a library cannot see the program's symbols. So that FAIL, TRY and log_info work the same on
 * both sides, the program passes it the functions that keep notes of failures and write the log,
 * and the library is linked with module_inside.c, which calls them, in place of
 * common/base/status.c and log.c. */
#ifndef TESSERA_COMMON_PROGRAM_MODULE_H
#define TESSERA_COMMON_PROGRAM_MODULE_H

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The program's functions of common/base/status.h and common/program/log.h. */
typedef struct module_host {
    status (*fail)(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...);
    status (*context)(status code, const char *fmt, ...);
    const char *(*text)(void);
    void (*clear)(void);
    int (*exit_code)(status code);
    void (*log)(int level, const char *fmt, ...);
} module_host;

/* Opens the library ../lib/tessera/FILE, relative to the folder of the running program, and gives
 * its function `symbol`. The library is never closed. Every such function takes a module_host as
 * its first argument. `what` ("CUDA backend") and `where_built` ("where nvcc is found") are words
 * for the message of ST_UNAVAILABLE: the library is missing, or cannot be opened. */
WARN_UNUSED status module_open(const char *file, const char *symbol, const char *what,
                               const char *where_built, void **out_function);
/* Gives the path of such a library, for a caller that opens it elsewhere. ST_UNAVAILABLE. */
WARN_UNUSED status module_find(const char *file, const char *what, const char *where_built,
                               char *out, size_t size);
/* The functions of this program, to pass to a library. */
const module_host *module_program(void);

/* Called inside the library before anything else: from then on failures and events go to the
 * program. */
void module_enter(const module_host *program);

#ifdef __cplusplus
}
#endif

#endif
