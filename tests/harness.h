/* harness.h: what every test shares: cmocka, the shared data, temporary folders, seeds. */
#ifndef TESSERA_TESTS_HARNESS_H
#define TESSERA_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/status.h"

/* Path under the shared data ($TESSERA_SHARED, else ../shared beside the source tree) or NULL: the
 * test then calls skip(). The string is the caller's to free. */
char *harness_shared(const char *relative);
/* Skips the test loudly, with the reason. */
#define HARNESS_SKIP(reason)                                                                       \
    do {                                                                                           \
        print_message("skipped: %s\n", reason);                                                    \
        skip();                                                                                    \
    } while (0)

/* A fresh folder under $TMPDIR; heap. harness_remove deletes it with all it holds. */
char *harness_temp(void);
void harness_remove(char **folder);

/* A TCP port of loopback that nobody has now; with out_fd a socket has it, bound and not listening,
 * the caller's to close. */
int harness_port(int *out_fd);

/* $TESSERA_SEED or 1; printed once, so that a failure can be repeated. */
uint64_t harness_seed(void);

/* Fails the test with status_text() unless ok. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        status harness_status_ = (call);                                                           \
        if (harness_status_ != ST_OK)                                                              \
            fail_msg("%s: %s", status_name(harness_status_), status_text());                       \
    } while (0)
/* The call must fail with this code and its text must hold these words. */
#define assert_fails(code, call, words)                                                            \
    do {                                                                                           \
        status harness_status_ = (call);                                                           \
        if (harness_status_ != (code))                                                             \
            fail_msg("wanted %s, got %s: %s", #code, status_name(harness_status_), status_text()); \
        if (!strstr(status_text(), (words)))                                                       \
            fail_msg("the error does not say \"%s\": %s", (words), status_text());                 \
    } while (0)

#endif
