/* notify.h: sd_notify by hand: one datagram to $NOTIFY_SOCKET; without it, nothing happens. */
#ifndef TESSERA_PREPD_SERVE_NOTIFY_H
#define TESSERA_PREPD_SERVE_NOTIFY_H

#include <stdint.h>

/* Lines as systemd reads them: "READY=1", "STATUS=...", "WATCHDOG=1", "STOPPING=1". */
void notify_send(const char *lines);
/* The same, dropped where the service manager has not read for long. */
void notify_try(const char *lines);
void notify_reloading(void); /* RELOADING=1; READY=1 ends it */
/* Half of WATCHDOG_USEC in nanoseconds if it is meant for this process, else 0. */
int64_t notify_watchdog_ns(void);

#endif
