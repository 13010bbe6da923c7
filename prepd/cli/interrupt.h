/* interrupt.h: the signals that stop a command with a private daemon, so that it leaves nothing
 * behind.
 *
 * Such a command has a temporary folder, and may have a file half written. From interrupt_listen
 * on, SIGINT, SIGTERM, SIGHUP and SIGPIPE only set a flag, at which waiting for rows ends with
 * ST_STOPPED. The command then cleans up as after any failure, and interrupt_end ends the process
 * by the signal, as the shell expects. A signal that is ignored (nohup) stays so. */
#ifndef TESSERA_PREPD_CLI_INTERRUPT_H
#define TESSERA_PREPD_CLI_INTERRUPT_H

#include <stdbool.h>

#include "proto/client.h"

void interrupt_listen(void);
bool interrupt_heard(void);
/* Names the client that waits for rows; NULL before it is closed. */
void interrupt_watch(client *rows);
/* Gives the signals their effect back. If one was heard, this logs it and does not return. */
void interrupt_end(void);

#endif
