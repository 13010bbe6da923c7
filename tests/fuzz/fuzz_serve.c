/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_serve.c: any messages from consumers, workers and commands to the dispatcher, in any order.
 * It must neither crash nor lose track of the work that it gave out.
 *
 * An input is a byte, then messages. With bit 0 of that byte the held-out section exists too, and
 * its index is being built; with bit 1 samples share prefixes; with bit 2 the second peer of each
 * endpoint has a key that may receive rows, and nothing else. A message is:
 *
 *   u8   flags: bits 0 and 1 choose the socket (3: none, time passes), bit 2 one of its two peers
 *   u8   kind
 *   u16  number of the row or the lease
 *   u16  size of the text
 *   ...  the text, which is JSON; with bit 3 of the flags its first 64 bytes are the header
 *
 * The dispatcher has two peers at each of its three endpoints, in a world in which nothing else
 * happens. Index and plan of its train section are kept from one input to the next, one of either
 * kind (serve_data.h); everything else is thrown away. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "common/program/log.h"
#include "prepd/serve/core/state/dispatch_state.h"
#include "prepd/serve/core/rows/core_rows.h"
#include "prepd/serve/core/consumers/core_consumers.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"
#include "tests/fuzz/serve_data.h"
#include "tests/fuzz/serve_leases.h"
#include "tests/unit/prepd/conf_defaults.h"
#include "tests/unit/prepd/serve/still_world.h"

enum { PEERS = 2, MOST_MESSAGES = 64, TURN_NS = 1000000 };
/* The process id of the one local worker. No process has such an id, so nothing happens when it is
 * killed. */
enum { NO_PROCESS = INT32_MAX };
enum { HELD_OUT = 1, SHARED = 2, RESTRICTED = 4 }; /* bits of an input's first byte */

#define MUST(call) FUZZ_HOLDS((call) == ST_OK)

/* What a worker must give in its JOIN; serve_seeds writes JOINs with it. */
static const char BUILD[] = "99999999999999999999999999999999";
static const char PRINTS[N_PRINTS][HASH_TEXT] = {"00000000000000000000000000000000",
                                                 "11111111111111111111111111111111",
                                                 "22222222222222222222222222222222"};

/* --- the dispatcher and its peers --- */

static conf options[2]; /* of the plain kind, and of the one in which samples share prefixes */
static source train[2]; /* likewise; the one of the present input is state.train */
static bool shared;     /* the kind of the present input */
static dispatch state;
static wire_peer peer[N_DOORS][PEERS];

static void close_all(void)
{
    for (int kind = 0; kind < 2; kind++) {
        state.train = train[kind];
        conf own = state.train.options;
        data_index *index = state.train.index;
        char *const texts[] = {state.train.index_path, state.train.stream_json};
        section_clear(&state.train);
        index_free(&index);
        conf_done(&own);
        free(texts[0]);
        free(texts[1]);
    }
    free(state.terms);
    arena_done(&state.scratch);
}

/* Whatever is sent must have a header that can be read, and a lease must hold together. */
static status check_sent(void *shell, door at, const wire_peer *to, wire_msg *message)
{
    frame head;
    (void)shell, (void)at, (void)to;
    FUZZ_HOLDS(frame_decode(wire_msg_part(message, 0), "sent", &head) == ST_OK);
    if (head.kind == KIND_LEASE)
        check_lease_text(wire_msg_part(message, 1));
    wire_msg_clear(message);
    return ST_OK;
}

static void name_peers(bool restricted)
{
    for (int at = 0; at < N_DOORS; at++)
        for (int k = 0; k < PEERS; k++)
            peer[at][k] =
                (wire_peer){.id = {(uint8_t)at, (uint8_t)k},
                            .size = 2,
                            .roles = k && restricted ? WIRE_ROWS : WIRE_GIVEN | WIRE_STATUS,
                            .key = "a key",
                            .key_name = "name"};
}

static void choose_kind(bool share)
{
    shared = share;
    serve_data_choose(share);
    state.options = &options[share];
    state.train = train[share];
}

static void make_section(bool share)
{
    options[share] = conf_defaults();
    options[share].training_seq_len = 512;
    options[share].training_global_batch_size = 4;
    options[share].training_epochs = 2;
    options[share].image_max_pixels = 1 << 16;
    options[share].data_ship = true;
    options[share].data_quarantine_limit = 100;
    options[share].data_group = share ? GROUP_SHARED_PREFIX : GROUP_NONE;
    train[share] = (source){.of = &state,
                            .name = "train",
                            .data = serve_data(),
                            .wanted = true,
                            .opened = true,
                            .ready = true};
    choose_kind(share);
    MUST(conf_copy(&options[share], &state.train.options));
    state.train.index = serve_index();
    MUST(clip_limits_load(&options[share], &state.train.clips));
    MUST(conf_stream_json(&options[share], state.train.model_digest, &state.train.stream_json));
    FUZZ_HOLDS((state.train.index_path = strdup("index")) != NULL);
    train[share] = state.train;
}

static void make_dispatcher(void)
{
    log_init("fuzz", LOG_ERROR, false);
    state = (dispatch){
        .outside = still_world(), .now_ns = 1, .place = {.host = "here", .build = BUILD}};
    state.outside.send = check_sent;
    memcpy(state.fingerprints.of, PRINTS, sizeof PRINTS);
    make_section(true);
    make_section(false);
    state.eval = (source){.of = &state, .name = "eval"};
    FUZZ_HOLDS((state.terms = strdup("{}")) != NULL);
    state.local.child[0].pid = NO_PROCESS;
    state.local.n_places = 1;
    lease_book_init(&state.book, 2);
    arena_init(&state.scratch, 1 << 26);
    atexit(close_all);
}

/* --- an input --- */

static void check_session(const consumer_seat *consumer)
{
    int64_t reserved = 0;
    FUZZ_HOLDS(consumer->n_slots >= 0 && consumer->n_slots <= SESSION_SLOTS &&
               consumer->unreturned >= 0);
    for (int i = 0; i < consumer->n_slots; i++)
        reserved += consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].reserved;
    FUZZ_HOLDS(reserved == consumer->reserved);
}

/* Checks the items of a lease. Returns whether it is a row that a consumer waits for. */
static bool check_row(const lease *leased)
{
    if (leased)
        check_lease_items(leased);
    return leased && leased->owner && leased->kind == LEASE_ROW;
}

/* Every row under way must be with a worker, wait in the book of leases, or be made already. */
static void check_leases(void)
{
    int64_t missing = 0, held = 0;
    int seats = 0, consumer_seats = 0;
    for (const consumer_seat *consumer = state.consumer_seats; consumer;
         consumer = consumer->next, consumer_seats++) {
        check_session(consumer);
        for (int i = 0; i < consumer->n_slots; i++)
            missing += !consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].msg;
    }
    for (const worker_seat *worker = state.seats; worker; worker = worker->next, seats++)
        held += check_row(worker->work) + check_row(worker->ahead);
    for (const worker_seat *worker = state.seats; worker; worker = worker->next)
        FUZZ_HOLDS(worker->missing_files == 0); /* no file of the data set exists */
    for (const lease *leased = state.book.lost; leased; leased = leased->next)
        held += check_row(leased) || leased->kind == LEASE_ROW;
    FUZZ_HOLDS(missing == held || state.stopping);
    FUZZ_HOLDS(seats == state.n_seats && consumer_seats == state.n_consumers);
}

static int64_t items_reached(void)
{
    int64_t count = 0;
    for (const worker_seat *worker = state.seats; worker; worker = worker->next)
        count += worker->work ? worker->work->reached : 0;
    return count;
}

static void open_held_out(void)
{
    state.eval = (source){
        .of = &state, .name = "eval", .data = serve_data(), .wanted = true, .opened = true};
    MUST(conf_copy(state.options, &state.eval.options));
    state.eval.clips = state.train.clips;
    FUZZ_HOLDS((state.eval.stream_json = strdup(state.train.stream_json)) &&
               (state.eval.index_path = strdup("/nowhere/index")));
    MUST(index_build_start(&state.eval));
}

static void close_held_out(void)
{
    conf own = state.eval.options;
    data_index *index = state.eval.index;
    char *const texts[] = {state.eval.index_path, state.eval.stream_json};
    const bool opened = state.eval.opened;
    section_clear(&state.eval);
    index_free(&index);
    free(texts[0]);
    free(texts[1]);
    if (opened)
        conf_done(&own);
}

static void turn_of_the_loop(void)
{
    dispatch_at(&state, state.now_ns + TURN_NS);
    consumers_deliver(&state);
    seats_check_time(&state, state.now_ns);
    consumers_drop_dead(&state, state.now_ns);
    planning_turn(&state);
    state.pieces_left = INT64_MAX; /* all that an input wants is planned at once */
    consumers_greet(&state);
    seats_schedule(&state);
    check_leases();
}

static void throw_away(void)
{
    while (state.consumer_seats)
        consumer_close(&state, state.consumer_seats, NULL);
    supervisors_leave(&state, false);
    while (state.seats) {
        lease_free(&state.seats->work);
        lease_free(&state.seats->ahead);
        seat_gone(&state, state.seats, LOSS_OUTSIDE, "end of the input");
    }
    while (state.book.lost) {
        lease *leased = state.book.lost;
        lease_book_remove(&state.book, leased);
        lease_free(&leased);
    }
    bad_samples_done(&state.train.bad);
    close_held_out();
    lease_book_init(&state.book, 2);
    state.counts = (serve_counts){0};
    state.peer_limits = (peer_limits){0};
    accounts_free(&state.accounts);
    state.stopping = state.draining = false;
    state.drain_ns = state.retired_ns = 0;
    state.outcome = ST_OK;
    state.turn = 0;
    state.local.child[0] = (local_child){.pid = NO_PROCESS};
    state.local.n_places = 1;
    train[shared] = state.train;
}

static void tell_message(const uint8_t *head, const uint8_t *text, size_t size)
{
    const int at_socket = head[0] & 3, k = head[0] >> 2 & 1;
    frame told = {.kind = (frame_kind)head[1],
                  .row = (uint64_t)(head[2] | head[3] << 8),
                  .block_bytes = size};
    uint8_t header[FRAME_BYTES];
    wire_msg *message = NULL;
    if (at_socket == N_DOORS)
        return;
    frame_encode(&told, header);
    MUST(wire_msg_new(&message));
    if (head[0] & 8 && size >= FRAME_BYTES) {
        MUST(wire_msg_add(message, text, FRAME_BYTES));
        MUST(wire_msg_add(message, text + FRAME_BYTES, size - FRAME_BYTES));
    } else {
        MUST(wire_msg_add(message, header, sizeof header));
        MUST(wire_msg_add(message, text, size));
    }
    const int64_t reached = items_reached(), before_ns = state.now_ns;
    const bool draining = state.draining;
    peer_message(&state, (door)at_socket, &peer[at_socket][k], message);
    if (!(peer[at_socket][k].roles & WIRE_WORK))
        FUZZ_HOLDS(!seat_find(&state, &peer[at_socket][k]) && state.draining == draining);
    FUZZ_HOLDS(items_reached() <= reached ||
               state.answered_ns >= before_ns); /* progress counts as a sign of life */
    wire_msg_free(&message);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { HEAD = 6 };
    if (!state.options)
        make_dispatcher();
    name_peers(size > 0 && bytes[0] & RESTRICTED);
    choose_kind(size > 0 && bytes[0] & SHARED);
    if (size > 0 && bytes[0] & HELD_OUT)
        open_held_out();
    bytes += size > 0;
    size -= size > 0;
    for (int sent = 0; sent < MOST_MESSAGES && size >= HEAD && !state.stopping; sent++) {
        const uint8_t *head = bytes;
        size_t text = (size_t)(head[4] | head[5] << 8);
        if (text > size - HEAD)
            text = size - HEAD;
        tell_message(head, bytes + HEAD, text);
        turn_of_the_loop();
        bytes += HEAD + text;
        size -= HEAD + text;
    }
    throw_away();
    return 0;
}
