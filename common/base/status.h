/* status.h: how a call says that it failed, and where the bad input stands.
 *
 * A fallible call returns a status. The one that meets the cause calls FAIL or FAIL_AT, which
 * keeps a note for this thread: code, message, the input's file with line or byte offset, and the
 * place in our source. Callers pass the code on with TRY or TRY_OR; whoever tells the story
 * (a verb, a dispatcher) prints status_text(). out_ values change only on success.
 *
 * A status is for the world (disk, wire, peer, device). assert is for our own mistakes and never
 * for outside data.
 */
#ifndef TESSERA_COMMON_BASE_STATUS_H
#define TESSERA_COMMON_BASE_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, exit code of the process (sysexits.h), what it means */
#define STATUS_LIST(X)                                                                             \
    X(ST_OK, 0, "ok")                                                                              \
    X(ST_USAGE, 64, "wrong command line")                                                          \
    X(ST_BAD_INPUT, 65, "bad data")                                                                \
    X(ST_NO_INPUT, 66, "input not found")                                                          \
    X(ST_UNAVAILABLE, 69, "service unavailable")                                                   \
    X(ST_INTERNAL, 70, "internal error")                                                           \
    X(ST_OS, 71, "operating system error")                                                         \
    X(ST_NO_MEMORY, 71, "out of memory")                                                           \
    X(ST_CANT_CREATE, 73, "cannot create output")                                                  \
    X(ST_IO, 74, "input/output error")                                                             \
    X(ST_TIMEOUT, 75, "timed out")                                                                 \
    X(ST_STOPPED, 75, "stopped by a signal")                                                       \
    X(ST_PROTOCOL, 76, "peer broke the protocol")                                                  \
    X(ST_MISMATCH, 69, "differs from the peer in what makes rows")                                 \
    X(ST_CONFIG, 78, "bad configuration")                                                          \
    X(ST_BAD_DEVICE, 69, "device error")                                                           \
    X(ST_END, 0, "end of stream")

typedef enum status {
#define STATUS_ENUM(name, exit_code, text) name,
    STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
        ST_COUNT
} status;

enum { STATUS_MESSAGE_MAX = 2048, STATUS_PATH_MAX = 1024 };

/* The thread's last failure. line and offset are -1 where they do not apply; line starts at 1,
 * offset (bytes) at 0. */
typedef struct status_note {
    status code;
    char message[STATUS_MESSAGE_MAX];
    char input[STATUS_PATH_MAX]; /* file or peer the bad bytes came from; "" if none */
    int64_t line;
    int64_t offset;
    const char *source; /* __FILE__ of the FAIL */
    int source_line;
    int os_error; /* errno where the FAIL stands: of use where the code says that the system failed
                   */
} status_note;

#define WARN_UNUSED __attribute__((warn_unused_result))

/* Notes the cause; returns code. Printf-like. input may be NULL. */
status status_fail(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* The note of this thread, valid until its next FAIL. Never NULL. */
const status_note *status_last(void);

/* "file:line: message" or "file: byte N: message" or "message"; valid until the next call. */
const char *status_text(void);

/* Puts words before the note's message, for context found on the way up. Returns the code. */
status status_context(status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Copies a note into this thread (from a worker thread or a peer). */
void status_set(const status_note *note);
void status_clear(void);

const char *status_name(status code);    /* "ST_IO" */
const char *status_meaning(status code); /* "input/output error" */
int status_exit_code(status code);       /* sysexits value */

/* An expression whose value is the code, in sight of the optimiser, which would else warn of out_
 * values it thinks a failing call left unset. */
#define FAIL_AT(code, input, line, offset, ...)                                                    \
    (__extension__({                                                                               \
        status fail_code_ = (code);                                                                \
        status_fail(fail_code_, __FILE__, __LINE__, (input), (line), (offset), __VA_ARGS__);       \
        fail_code_;                                                                                \
    }))
#define FAIL(code, ...)           FAIL_AT((code), NULL, -1, -1, __VA_ARGS__)
#define FAIL_IN(code, input, ...) FAIL_AT((code), (input), -1, -1, __VA_ARGS__)

#define TRY(call)                                                                                  \
    do {                                                                                           \
        status try_status_ = (call);                                                               \
        if (try_status_ != ST_OK)                                                                  \
            return try_status_;                                                                    \
    } while (0)

/* Needs `status st` in scope and a cleanup label. */
#define TRY_OR(label, call)                                                                        \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != ST_OK)                                                                           \
            goto label;                                                                            \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
