/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h: what all tests share: cmocka, shared data, temporary folders, ports, the seed. */
#ifndef TESSERA_TESTS_HARNESS_H
#define TESSERA_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/status.h"

/* Path of a shared file ($TESSERA_SHARED, else ../shared beside the tree), which the caller frees.
 * NULL if there is none; the test then calls HARNESS_SKIP. */
char *harness_shared(const char *relative);
/* Skips the test and prints the reason. */
#define HARNESS_SKIP(reason)                                                                       \
    do {                                                                                           \
        print_message("skipped: %s\n", reason);                                                    \
        skip();                                                                                    \
    } while (0)

/* Makes a folder below $TMPDIR. harness_remove deletes it with all it holds and frees the path. */
char *harness_temp(void);
void harness_remove(char **folder);

/* A TCP port of loopback that is free now. With out_fd, a socket that is bound to it and does not
 * listen keeps it until the caller closes that. */
int harness_port(int *out_fd);

/* $TESSERA_SEED, or 1. It is printed once, so that a failure can be repeated. */
uint64_t harness_seed(void);

/* HARNESS_SANITIZED (from CMake) is whether this is a build with a sanitizer, which is several
 * times slower. There a test may repeat fewer times what reaches no code that the first time does
 * not reach; the numbers are compared in the other build. */

/* Fails the test with status_text() unless the call returns ST_OK. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        status harness_status_ = (call);                                                           \
        if (harness_status_ != ST_OK)                                                              \
            fail_msg("%s: %s", status_name(harness_status_), status_text());                       \
    } while (0)
/* The call must fail with this code, and its text must contain these words. */
#define assert_fails(code, call, words)                                                            \
    do {                                                                                           \
        status harness_status_ = (call);                                                           \
        if (harness_status_ != (code))                                                             \
            fail_msg("wanted %s, got %s: %s", #code, status_name(harness_status_), status_text()); \
        if (!strstr(status_text(), (words)))                                                       \
            fail_msg("the error does not say \"%s\": %s", (words), status_text());                 \
    } while (0)

#endif
