/* stop.h: the one place that hears SIGTERM and SIGINT. The first sets a flag that the step and
 * whoever waits ask for; the second does what the system does by default. */
#ifndef TESSERA_TRAINER_STOP_H
#define TESSERA_TRAINER_STOP_H

#include <stdbool.h>
#include <stdint.h>

void stop_listen(void);
bool stop_asked(void);
int64_t stop_asked_ns(void); /* clock_ns() of the signal, to within a poll; 0 before it */

#endif
