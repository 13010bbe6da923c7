/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_exchange.c: implements mpi_exchange.h. All messages are posted at once, in pieces that MPI's
 * counts can hold, and then polled until all are done, the rank link ends the job, or time is
 * up. */
#include "trainer/parallel/comm/mpi_exchange.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "trainer/parallel/core/call_deadline.h"

/* MPI counts bytes in an int,
 * so a longer transfer goes as several messages of at most this size. */
static const int64_t MESSAGE_BYTES = INT64_C(1) << 30;
/* The first POLLS_AWAKE polls only yield the core; later ones sleep, which leaves it to ranks that
 * compute. The clock is read every POLLS_PER_CLOCK polls. */
enum { POLLS_AWAKE = 200, NAP_NS = 50 * 1000, POLLS_PER_CLOCK = 16 };

typedef struct mpi_message {
    const mpi_transfer *of;
    int bytes;
} mpi_message;

static status mpi_failed(mpi_world *mpi, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int count;
    mpi->broken = true;
    MPI_Error_string(code, text, &count);
    return FAIL(ST_UNAVAILABLE, "%s: %s", what, text);
}

static int64_t messages_of(const mpi_transfer *transfer)
{
    return (transfer->bytes + MESSAGE_BYTES - 1) / MESSAGE_BYTES;
}

static status make_room(mpi_world *world, const mpi_transfer *transfer, int count)
{
    int64_t wanted = 0;
    for (int i = 0; i < count; i++)
        wanted += messages_of(&transfer[i]);
    if (wanted <= world->capacity)
        return ST_OK;
    if (wanted > INT32_MAX)
        return FAIL(ST_INTERNAL, "an exchange of %lld messages is too large", (long long)wanted);
    free(world->request);
    free(world->status);
    free(world->message);
    world->capacity = 0;
    world->request = calloc((size_t)wanted, sizeof *world->request);
    world->status = calloc((size_t)wanted, sizeof *world->status);
    world->message = calloc((size_t)wanted, sizeof *world->message);
    if (!world->request || !world->status || !world->message)
        return FAIL(ST_NO_MEMORY, "no memory for %lld messages", (long long)wanted);
    world->capacity = (int)wanted;
    return ST_OK;
}

static status post(mpi_world *world, int tag, const mpi_transfer *transfer, int *inout_posted)
{
    for (int64_t first = 0; first < transfer->bytes; first += MESSAGE_BYTES) {
        int64_t left = transfer->bytes - first;
        mpi_message *message = &world->message[*inout_posted];
        MPI_Request *request = &world->request[*inout_posted];
        *message = (mpi_message){transfer, (int)(left < MESSAGE_BYTES ? left : MESSAGE_BYTES)};
        int rc = transfer->sends ? MPI_Isend(transfer->at + first, message->bytes, MPI_BYTE,
                                             transfer->peer, tag, MPI_COMM_WORLD, request)
                                 : MPI_Irecv(transfer->at + first, message->bytes, MPI_BYTE,
                                             transfer->peer, tag, MPI_COMM_WORLD, request);
        if (rc != MPI_SUCCESS)
            return mpi_failed(world, transfer->sends ? "MPI_Isend" : "MPI_Irecv", rc);
        (*inout_posted)++;
    }
    return ST_OK;
}

/* Fails with the names of the ranks whose messages are not done. */
static status too_late(mpi_world *mpi, int posted)
{
    enum { NAMED = 16 };
    char names[NAMED * 12] = "";
    int named[NAMED], n_named = 0;
    size_t used = 0;
    for (int i = 0; i < posted && n_named < NAMED; i++) {
        int arrived = mpi->request[i] == MPI_REQUEST_NULL, told = 0;
        if (!arrived)
            MPI_Request_get_status(mpi->request[i], &arrived, MPI_STATUS_IGNORE);
        for (int k = 0; k < n_named; k++)
            told |= named[k] == mpi->message[i].of->peer;
        if (arrived || told)
            continue;
        named[n_named++] = mpi->message[i].of->peer;
        used +=
            (size_t)snprintf(names + used, sizeof names - used, " %d", mpi->message[i].of->peer);
    }
    mpi->broken = true;
    return FAIL(ST_TIMEOUT, "no answer within %.1f s from rank%s%s", (double)mpi->timeout_ns * 1e-9,
                n_named == 1 ? "" : "s", names);
}

static void pause_polls(int polls)
{
    if (polls < POLLS_AWAKE)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

static status wait_for(mpi_world *mpi, int posted)
{
    call_deadline limit = call_deadline_begin(clock_ns(), mpi->timeout_ns);
    for (int polls = 0;; polls++) {
        int done = 0;
        int rc = MPI_Testall(posted, mpi->request, &done, mpi->status);
        for (int i = 0; rc == MPI_ERR_IN_STATUS && i < posted; i++) {
            int code = mpi->status[i].MPI_ERROR;
            if (code != MPI_SUCCESS && code != MPI_ERR_PENDING)
                return mpi_failed(mpi, mpi->message[i].of->sends ? "a send" : "a receive", code);
        }
        if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS)
            return mpi_failed(mpi, "MPI_Testall", rc);
        if (done)
            return ST_OK;
        if (polls % POLLS_PER_CLOCK == 0) {
            status st = mpi->check ? mpi->check(mpi->context) : ST_OK;
            mpi->broken = st != ST_OK;
            TRY(st);
            if (call_deadline_passed(&limit, clock_ns(),
                                     mpi->patient && mpi->patient(mpi->context)))
                return too_late(mpi, posted);
        }
        pause_polls(polls);
    }
}

/* MPI accepts a message that is shorter than the receiver's buffer. Here that is an error: the
 * ranks do not make the same calls. */
static status check_sizes(mpi_world *mpi, int posted)
{
    for (int i = 0; i < posted; i++) {
        const mpi_message *mail = &mpi->message[i];
        int came = mail->bytes;
        if (!mail->of->sends)
            MPI_Get_count(&mpi->status[i], MPI_BYTE, &came);
        if (came == mail->bytes)
            continue;
        mpi->broken = true;
        return FAIL(ST_PROTOCOL, "rank %d sent %d bytes where %d were expected", mail->of->peer,
                    came, mail->bytes);
    }
    return ST_OK;
}

status mpi_exchange(mpi_world *world, int tag, const mpi_transfer *list, int count)
{
    if (world->broken)
        return FAIL(ST_UNAVAILABLE, "an earlier exchange with other ranks failed");
    TRY(make_room(world, list, count));
    int posted = 0;
    for (int i = 0; i < count; i++)
        TRY(post(world, tag, &list[i], &posted));
    TRY(wait_for(world, posted));
    return check_sizes(world, posted);
}
