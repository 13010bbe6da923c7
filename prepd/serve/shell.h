/* SPDX-License-Identifier: Apache-2.0 */
/* shell.h: the world around the dispatcher's core (core/state/outside.h): sockets, processes, files,
 * signals, the clock. No other folder includes it.
 *
 * The shell turns what happens into events of the core, and what the core wants into system calls.
 * It decides nothing about rows, leases or peers. */
#ifndef TESSERA_PREPD_SERVE_SHELL_H
#define TESSERA_PREPD_SERVE_SHELL_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "common/http/http.h"
#include "common/json/json.h"
#include "prepd/dataset/dataset.h"
#include "prepd/serve/core/state/dispatch.h"
#include "prepd/serve/core/state/dispatch_state.h"
#include "proto/wire/wire.h"

/* How many of ZeroMQ's threads move the dispatcher's bytes, and which connections
 * each of them has.
 *
 * The dispatcher's own thread handles messages and never copies a picture. ZeroMQ's threads read
 * and write the connections and, with keys, encrypt: for one picture that is more work than the
 * dispatcher has with a whole row. A connection stays with one thread, so one busy consumer is the
 * work of one thread at most. Every byte of a row comes in from a worker and goes out to a
 * consumer. Therefore the first half of the threads has the consumers and the second half the
 * workers; with an odd number the one in the middle has some of both.
 *
 * libzmq gives a new connection to the thread that has the fewest, but does not count those that it
 * has just given: connections that come in the same moment may all land on one thread. */
typedef struct io_threads {
    int n_threads;
    uint64_t consumers, workers; /* bit k is set if thread k has such connections */
} io_threads;

/* prepd.io_threads of them; where that is 0, as many as this number of CPUs can keep busy over
 * links of the endpoint's kind. */
io_threads io_threads_of(const conf *options, int cpus);

/* The part read so far of the line that the fingerprint process writes. */
typedef struct fingerprint_pipe {
    pid_t pid; /* 0: there is none */
    int fd;
    char text[4096];
    size_t text_bytes;
} fingerprint_pipe;

/* What children are started from, whatever is on disk by now (system_calls.c). */
typedef struct own_files {
    int program;   /* a descriptor of this program; 0: not opened yet */
    int module[2]; /* [n_modules] descriptors of the image and the video module */
    int n_modules;
} own_files;

typedef struct shell {
    dispatch *core;
    conf *options;     /* the caller's; the core reads them as well */
    char *const *args; /* [n_args] the command line of the options, which SIGHUP reads again */
    int n_args;
    int reloaded; /* options that the last reload changed */
    bool reload;  /* SIGHUP has come */
    wire *net;
    io_threads io;
    wire_socket *socket[N_DOORS];
    char *endpoint[N_DOORS]; /* that of consumers is the options' own; the others are on the heap */
    char *local_endpoint;    /* heap; where local workers find that of workers */
    char self[STATUS_PATH_MAX]; /* what children are called (argv[0]) */
    own_files files;
    char host[64];
    int signal_fd;
    http *metrics; /* NULL if metrics.listen is empty */
    fingerprint_pipe pipe;
    int64_t ticked_ns, watchdog_ns;
    int64_t told_ns;          /* when the rates were measured that were told last */
    int64_t index_told_ns[2]; /* of each section */
} shell;

/* system_calls.c */
outside shell_outside(shell *shell); /* the table of this shell; it borrows the shell */

/* endpoints.c */
WARN_UNUSED status doors_may_open(shell *shell); /* before data is read: fails as binding would */
WARN_UNUSED status doors_open(shell *shell);
/* Hands the messages that have come at one door to the core, as many as a turn has room for. */
WARN_UNUSED status doors_read(shell *shell, door at);
void doors_tell(shell *shell); /* logs which peers ZeroMQ's side refused */
void doors_close(shell *shell);

/* processes.c */
WARN_UNUSED status start_worker(shell *shell, char out_ticket[TICKET_TEXT], pid_t *out_pid);
WARN_UNUSED status start_fingerprinting(shell *shell, const char *only, pid_t *out_pid);
void end_process(shell *shell, pid_t pid, bool at_once);
void processes_reap(shell *shell);          /* tells the core which children have ended */
void fingerprint_pipe_read(shell *shell);   /* reads what fingerprinting writes, for the core */
void fingerprint_pipe_forget(shell *shell); /* the daemon ends */

/* system_calls.c */
/* Opens what children are started from. Call before any thread starts: it sets environment
 * variables. */
WARN_UNUSED status own_files_open(own_files *files);
void own_files_close(own_files *files);

/* source.c */
WARN_UNUSED status source_want(shell *shell, source *section);
/* Takes over what the thread has opened, once it is done, and tells the core. */
void source_advance(shell *shell, source *section);
/* Writes the sealed index to its file, if it has one, and gives the lock back. */
void source_keep_index(source *section);
void source_done(source *section);

/* source.c */

/* reload.c */
void reload_options(shell *shell);

/* Tells the service manager, as often as it wants to hear it, that the loop turns and that work
 * comes back. */
void progress_watchdog(shell *shell, int64_t now);

/* metrics.c */
const char *metrics_unhealthy(const dispatch *dispatch, int64_t now); /* why; NULL if healthy */
/* An http_handler; `user` is the dispatch. */
int metrics_answer(void *user, const char *path, FILE *out, const char **out_type);

/* systemd's sd_notify without its library: one datagram to $NOTIFY_SOCKET. Without that
 * variable, nothing happens. */

/* Sends lines as systemd reads them: "READY=1", "STATUS=...", "WATCHDOG=1", "STOPPING=1". */
void notify_send(const char *lines);
/* The same, but if the service manager does not read, the lines are dropped instead of waiting. */
void notify_try(const char *lines);
/* Half of WATCHDOG_USEC, in nanoseconds; 0 if there is no watchdog or it is for another process. */
int64_t notify_watchdog_ns(void);

/* Sends the bytes of a lease's files along with the lease, for a worker that has no data
 * root (data.ship).
 *
 * Only bytes: nothing is decoded here. Nothing from outside the data folder is sent, whatever links
 * lie in it (prepd/dataset/dataset.h). A file that cannot be read is described as the worker would
 * have found it, so that the stream does not depend on who reads a file. */

/* Checks that every file of the data set lies inside its folder. CONFIG names the first that does
 * not, and says how many there are. */
WARN_UNUSED status ship_check(const dataset *data);

/* Reads image `image` of the data set into new parts of the message. Of a folder of frames it reads
 * frames index[0] to index[count - 1], or the first `count` where index is NULL. Writes one entry
 * per file:
 *
 *   "shipped":[{"size":of the file,"mtime":ns,"part":its number in the message}...]
 *
 * without "part" if the file is larger than `limits` allow or ends before the wanted piece; or
 * {"errno":E}, or {"irregular":true} if it is not a regular file. */
WARN_UNUSED status ship_file(const dataset *data, int64_t image, const image_place *place,
                             const int64_t *index, int64_t count, const conf *limits,
                             wire_msg *parts, json_writer *out);

#endif
