/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h: limits what a worker may ask of the kernel before it decodes untrusted files.
 *
 * A list of allowed system calls is installed with libseccomp; every other call fails with EPERM.
 * Not on the list: new sockets and connections, running programs, starting processes, opening a
 * file for writing, tracing or signalling other processes (also by making one the owner of a
 * descriptor), typing into a terminal, changing limits or CPUs of another process, mounting,
 * changing identity, loading anything into the kernel. The connection to the dispatcher stays open,
 * and files below the data root can be read. A worker that loses its connection cannot make
 * another; its parent starts a new worker instead. Only sandbox.c uses libseccomp. */
#ifndef TESSERA_PREPD_WORKER_SANDBOX_H
#define TESSERA_PREPD_WORKER_SANDBOX_H

#include "common/base/status.h"

/* Gives up privileges for good: running a program gains none (no_new_privs), and of root's
 * capabilities only those remain that allow reading files of other users (CAP_DAC_OVERRIDE,
 * CAP_DAC_READ_SEARCH; the list then forbids writing). This holds for the calling thread and those
 * that it starts, so call it before there are others. */
WARN_UNUSED status sandbox_shed_privileges(void);
/* Puts the list in force, for every thread of the process and for good. */
WARN_UNUSED status sandbox_enter(void);

#endif
