/* sandbox.h: what a worker may still ask of the kernel once it decodes files of strangers.
 *
 * A list of allowed system calls (libseccomp; this is its only door); all others fail with EPERM.
 * Not on the list: new sockets and connections, running programs, new processes, opening a file for
 * writing, tracing or signalling others (also through a descriptor's owner), typing into a
 * terminal, limits or CPUs of another process, mounting, changing identity, loading anything into
 * the kernel. The connection to the dispatcher and the files below the data root stay. A worker
 * that loses its connection cannot make another: its parent starts a new one. */
#ifndef TESSERA_PREPD_WORKER_SANDBOX_H
#define TESSERA_PREPD_WORKER_SANDBOX_H

#include "common/base/status.h"

/* For good: no privileges by running a program (no_new_privs), and of root's those alone by which
 * files of other users are read (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; writing ends with the
 * list). Of the calling thread and those it makes: before there are others. */
WARN_UNUSED status sandbox_shed_privileges(void);
/* Enters the list; for every thread of the process, for good. */
WARN_UNUSED status sandbox_enter(void);

#endif
