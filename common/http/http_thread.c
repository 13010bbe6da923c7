/* SPDX-License-Identifier: Apache-2.0 */
/* http_thread.c: the thread of a program that has no loop. */
#include "common/http/http.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { TURN_MS = 1000 }; /* how often connections are judged by their age */

struct http_thread {
    http *server;
    int quit_fd; /* readable once the thread is to end */
    pthread_t thread;
};

static void *answer_requests(void *user)
{
    http_thread *self = user;
    struct pollfd wait[] = {{.fd = http_fd(self->server), .events = POLLIN},
                            {.fd = self->quit_fd, .events = POLLIN}};
    while (!(wait[1].revents & POLLIN)) {
        if (poll(wait, sizeof wait / sizeof *wait, TURN_MS) < 0 && errno != EINTR)
            break;
        http_run(self->server);
    }
    return NULL;
}

static int start_thread(http_thread *self)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    const int error = pthread_create(&self->thread, NULL, answer_requests, self);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return error;
}

status http_thread_start(const http_place *place, http_handler handle, void *user,
                         http_thread **out)
{
    http_thread *self = calloc(1, sizeof *self);
    if (!self)
        return FAIL(ST_NO_MEMORY, "no memory for the thread of %s", place->option);
    status st = http_open(place, handle, user, &self->server);
    if (st != ST_OK) {
        free(self);
        return st;
    }
    self->quit_fd = eventfd(0, EFD_CLOEXEC);
    int error = self->quit_fd < 0 ? errno : start_thread(self);
    if (error) {
        if (self->quit_fd >= 0)
            close(self->quit_fd);
        http_close(&self->server);
        free(self);
        return FAIL(ST_OS, "the thread of %s cannot be started: %s", place->option,
                    strerror(error));
    }
    *out = self;
    return ST_OK;
}

void http_thread_stop(http_thread **held)
{
    http_thread *self = *held;
    if (!self)
        return;
    (void)!write(self->quit_fd, &(uint64_t){1}, sizeof(uint64_t)); /* cannot fail from 0 to 1 */
    pthread_join(self->thread, NULL);
    http_close(&self->server);
    close(self->quit_fd);
    free(self);
    *held = NULL;
}
