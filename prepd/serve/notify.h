/* notify.h: systemd's sd_notify without its library: one datagram to $NOTIFY_SOCKET. Without that
 * variable, nothing happens. */
#ifndef TESSERA_PREPD_SERVE_NOTIFY_H
#define TESSERA_PREPD_SERVE_NOTIFY_H

#include <stdint.h>

/* Sends lines as systemd reads them: "READY=1", "STATUS=...", "WATCHDOG=1", "STOPPING=1". */
void notify_send(const char *lines);
/* The same, but if the service manager does not read, the lines are dropped instead of waiting. */
void notify_try(const char *lines);
void notify_reloading(void); /* RELOADING=1; READY=1 ends it */
/* Half of WATCHDOG_USEC, in nanoseconds; 0 if there is no watchdog or it is for another process. */
int64_t notify_watchdog_ns(void);

#endif
