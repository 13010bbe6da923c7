/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how a function reports failure, and where in its input the fault is.
 *
 * A function that can fail returns a status. The function that finds the cause calls FAIL, FAIL_IN
 * or FAIL_AT once, which keeps a note for this thread: the code, a message, the name of the input
 * with line or byte offset, and the place in our source. Its callers pass the code on with TRY or
 * TRY_OR and may add context (status_context). The function at the top (a verb, the dispatcher)
 * prints status_text() or calls log_status(). Parameters named out or out_... change only on
 * success.
 *
 *     static status read_header(const char *path, header *out)
 *     {
 *         json_value *v;
 *         TRY(json_load(path, &v));
 *         ...
 *         return FAIL_IN(ST_BAD_INPUT, path, "\"%s\" is missing", key);
 *     }
 *
 * A status is for what the world does (disks, networks, peers, devices, data). assert is for
 * mistakes in our own code, and is never used on data from outside.
 */
#ifndef TESSERA_COMMON_BASE_STATUS_H
#define TESSERA_COMMON_BASE_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Name, exit code of a process that ends with it (sysexits.h), meaning. */
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

/* A failure. line counts from 1 and offset, in bytes, from 0; each is -1 if it does not apply. */
typedef struct status_note {
    status code;
    char message[STATUS_MESSAGE_MAX];
    char input[STATUS_PATH_MAX]; /* the file or peer that the bad data came from; "" if none */
    int64_t line;
    int64_t offset;
    const char *source; /* __FILE__ and __LINE__ of the FAIL */
    int source_line;
    int os_error; /* errno at the FAIL; means something only if a system call failed just before */
} status_note;

#define WARN_UNUSED __attribute__((warn_unused_result))

/* Keeps a note of the failure, made with the printf format, and returns code. input can be NULL.
 * Use the macros FAIL, FAIL_IN and FAIL_AT below. */
status status_fail(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* The last note of this thread; never NULL, and valid until the thread's next FAIL. */
const status_note *status_last(void);

/* The last note as text: "file:line: message", "file: byte N: message", "file: message" or
 * "message". Valid until the thread's next call of this function. */
const char *status_text(void);

/* Puts "words: " before the message of the last note, for context that only a caller knows. Returns
 * code. */
status status_context(status code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes this note the thread's last one; for a note that was made by another thread, or kept while
 * something else was tried. */
void status_set(const status_note *note);
/* Forgets the last note. */
void status_clear(void);

const char *status_name(status code);    /* "ST_IO" */
const char *status_meaning(status code); /* "input/output error" */
int status_exit_code(status code);       /* of sysexits.h: 74 */

/* FAIL(code, fmt, ...): a failure without an input; FAIL_IN names the input; FAIL_AT names the line
 * or the offset in it too. Each is an expression with the value `code`. That value is visible to
 * the optimiser, which otherwise would not see that a failing path returns something else than
 * ST_OK, and would warn about out_ values that are not set there. */
#define FAIL_AT(code, input, line, offset, ...)                                                    \
    (__extension__({                                                                               \
        status fail_code_ = (code);                                                                \
        status_fail(fail_code_, __FILE__, __LINE__, (input), (line), (offset), __VA_ARGS__);       \
        fail_code_;                                                                                \
    }))
#define FAIL(code, ...)           FAIL_AT((code), NULL, -1, -1, __VA_ARGS__)
#define FAIL_IN(code, input, ...) FAIL_AT((code), (input), -1, -1, __VA_ARGS__)

/* Returns from this function with the status of the call, if that is not ST_OK. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        status try_status_ = (call);                                                               \
        if (try_status_ != ST_OK)                                                                  \
            return try_status_;                                                                    \
    } while (0)

/* The same, but goes to a cleanup label with the status in `st`, which must be declared. */
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
