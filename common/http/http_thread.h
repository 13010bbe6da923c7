/* http_thread.h: an HTTP door that is served by a thread of its own, for a program whose main
 * thread is busy for seconds at a time. The handler runs in that thread. */
#ifndef TESSERA_COMMON_HTTP_THREAD_H
#define TESSERA_COMMON_HTTP_THREAD_H

#include "common/http/http.h"

typedef struct http_thread http_thread;

/* Listens as http_open does and starts the thread. The thread receives no signals, which so reach
 * the threads that handle them. */
WARN_UNUSED status http_thread_start(const http_place *place, http_handler handle, void *user,
                                     http_thread **out);
/* Ends the thread and closes the door; once it has returned, the handler is no longer called.
 * Accepts a pointer to NULL. */
void http_thread_stop(http_thread **thread);

#endif
