/* fuzz_serve.c: any messages from consumers, workers and commands to the dispatcher, in any order.
 * It must neither crash nor lose track of the work that it gave out.
 *
 * An input is a byte, then messages. With bit 0 of that byte the held-out section exists too, and
 * its index is being built. A message is:
 *
 *   u8   flags: bits 0 and 1 choose the socket (3: none, time passes), bit 2 one of its two peers
 *   u8   kind
 *   u16  number of the row or the lease
 *   u16  size of the text
 *   ...  the text, which is JSON; with bit 3 of the flags its first 64 bytes are the header
 *
 * The dispatcher has three real sockets with two peers each. Index and plan of its train section
 * are kept from one input to the next; everything else is thrown away. */
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { SAMPLES = 60, SOCKETS = 3, PEERS = 2, MOST_MESSAGES = 64, WAIT_MS = 10000 };
/* The process id of the one local worker. No process has such an id, so nothing happens when it is
 * killed. */
enum { NO_PROCESS = INT32_MAX };

#define MUST(call) FUZZ_HOLDS((call) == ST_OK)

/* --- a data set --- */

static int64_t count_samples(const dataset *d)
{
    (void)d;
    return SAMPLES;
}

static status make_sample(const dataset *d, int64_t i, arena *a, sample *out)
{
    void *turns, *parts, *images;
    (void)d;
    TRY(arena_calloc(a, 2, sizeof(turn), &turns));
    TRY(arena_calloc(a, 2, sizeof(part), &parts));
    TRY(arena_calloc(a, 1, sizeof(int32_t), &images));
    part *p = (part *)parts;
    turn *t = (turn *)turns;
    p[0] = (part){.image = 0};
    p[1] = (part){"a text", 6, -1};
    t[0] = (turn){.role = ROLE_USER, .parts = p, .n_parts = 1};
    t[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = p + 1, .n_parts = 1};
    *(int32_t *)images = (int32_t)i;
    *out = (sample){.id = (uint64_t)i,
                    .name = "a sample",
                    .turns = t,
                    .n_turns = 2,
                    .images = (int32_t *)images,
                    .n_images = 1};
    return ST_OK;
}

static const char *path(const dataset *d, int64_t j)
{
    (void)d, (void)j;
    return "nowhere/picture.jpg";
}

static const char *root(const dataset *d)
{
    (void)d;
    return "/"; /* a peer must not learn what is there */
}

static hash128 identity(const dataset *d)
{
    (void)d;
    return hash_bytes("fuzz", 4);
}

static const dataset_vtable vtable = {.name = "fuzz",
                                      .samples = count_samples,
                                      .sample = make_sample,
                                      .outline = make_sample,
                                      .images = count_samples,
                                      .image_path = path,
                                      .root = root,
                                      .identity = identity};
static dataset data = {&vtable};

static const char INDEX[] =
    "fef314d8f0ad0269a90921c955003302"; /* serve_seeds writes cursors with it */

/* What a worker must give in its JOIN; serve_seeds writes JOINs with it. */
static const char BUILD[] = "99999999999999999999999999999999";
static const char PRINTS[N_PRINTS][HASH_TEXT] = {"00000000000000000000000000000000",
                                                 "11111111111111111111111111111111",
                                                 "22222222222222222222222222222222"};

static void make_index(data_index **out)
{
    MUST(index_new(SAMPLES, SAMPLES, out));
    for (int64_t i = 0; i < SAMPLES; i++) {
        const index_sample s = {20 + (int32_t)i % 7, 5, NULL};
        const index_image im = {1000, 1, 320, 240 + (int32_t)i % 5 * 32, NULL};
        MUST(index_put_image(*out, i, &im));
        MUST(index_put_sample(*out, i, &s));
    }
    MUST(index_seal(*out));
    char print[HASH_TEXT];
    hash_print(index_digest(*out), print);
    FUZZ_HOLDS(strcmp(print, INDEX) == 0);
}

/* --- the dispatcher and its peers --- */

static conf options;
static dispatch d;
static char folder[] = "/tmp/fuzz-serve-XXXXXX";
static wire *outside;
static wire_socket *peer_socket[SOCKETS][PEERS];
static wire_peer peer[SOCKETS][PEERS];

static void close_all(void)
{
    for (int s = 0; s < SOCKETS; s++)
        for (int k = 0; k < PEERS; k++)
            wire_close(&peer_socket[s][k]);
    wire_close(&d.consumers);
    wire_close(&d.workers);
    wire_close(&d.control);
    wire_free(&outside);
    wire_free(&d.net);
    d.train.data = NULL; /* it is static */
    source_done(&d.train);
    source_done(&d.eval);
    free(d.terms);
    arena_done(&d.scratch);
    rmdir(folder);
}

static void bind_peers(int s, wire_socket **bound, wire_msg *m)
{
    static const wire_limits limits = {.part_bytes = 1 << 24, .unsent = 64};
    char end[64];
    snprintf(end, sizeof end, "ipc://%s/%d", folder, s);
    MUST(wire_bind(d.net, end, &limits, bound));
    for (int k = 0; k < PEERS; k++) {
        MUST(wire_connect(outside, end, &peer_socket[s][k]));
        MUST(wire_send_json(peer_socket[s][k], NULL, KIND_BYE, 0, "{}", 2));
        MUST(wire_recv(*bound, WAIT_MS, &peer[s][k], m));
    }
}

static void make_dispatcher(void)
{
    wire_msg *m = NULL;
    log_init("fuzz", LOG_ERROR, false);
    options = conf_defaults();
    options.training_seq_len = 512;
    options.training_global_batch_size = 4;
    options.training_epochs = 2;
    options.image_max_pixels = 1 << 16;
    options.data_ship = true;
    options.data_quarantine_limit = 100;
    FUZZ_HOLDS(mkdtemp(folder) != NULL);
    d = (dispatch){.options = &options, .host = "here", .build = BUILD, .signal_fd = -1};
    memcpy(d.fingerprints.of, PRINTS, sizeof PRINTS);
    d.train =
        (source){.name = "train", .data = &data, .wanted = true, .opened = true, .ready = true};
    MUST(conf_copy(&options, &d.train.options));
    d.eval.name = "eval";
    make_index(&d.train.index);
    MUST(clip_limits_load(&options, &d.train.clips));
    MUST(conf_stream_json(&options, d.train.model_digest, &d.train.stream_json));
    FUZZ_HOLDS((d.train.index_path = strdup("index")) && (d.terms = strdup("{}")));
    d.local.child[0].pid = NO_PROCESS;
    lease_book_init(&d.book, 2);
    arena_init(&d.scratch, 1 << 26);
    MUST(wire_new(&d.net));
    MUST(wire_new(&outside));
    MUST(wire_msg_new(&m));
    bind_peers(0, &d.consumers, m);
    bind_peers(1, &d.workers, m);
    bind_peers(2, &d.control, m);
    wire_msg_free(&m);
    atexit(close_all);
}

/* --- an input --- */

static void check_session(const consumer_seat *s)
{
    int64_t reserved = 0;
    FUZZ_HOLDS(s->n_slots >= 0 && s->n_slots <= SESSION_SLOTS && s->unreturned >= 0);
    for (int i = 0; i < s->n_slots; i++)
        reserved += s->slots[(s->first_slot + i) % SESSION_SLOTS].reserved;
    FUZZ_HOLDS(reserved == s->reserved);
}

static bool is_row(const lease *l)
{
    return l && l->owner && l->kind == LEASE_ROW;
}

/* Every row under way must be with a worker, wait in the book of leases, or be made already. */
static void check_leases(void)
{
    int64_t missing = 0, held = 0;
    int seats = 0, consumer_seats = 0;
    for (const consumer_seat *s = d.consumer_seats; s; s = s->next, consumer_seats++) {
        check_session(s);
        for (int i = 0; i < s->n_slots; i++)
            missing += !s->slots[(s->first_slot + i) % SESSION_SLOTS].msg;
    }
    for (const worker_seat *w = d.seats; w; w = w->next, seats++)
        held += is_row(w->work) + is_row(w->ahead);
    for (const worker_seat *w = d.seats; w; w = w->next)
        FUZZ_HOLDS(w->missing_files == 0); /* no file of the data set exists */
    for (const lease *l = d.book.lost; l; l = l->next)
        held += l->kind == LEASE_ROW;
    FUZZ_HOLDS(missing == held || d.stopping);
    FUZZ_HOLDS(seats == d.n_seats && consumer_seats == d.n_consumers);
}

static int64_t items_reached(void)
{
    int64_t n = 0;
    for (const worker_seat *w = d.seats; w; w = w->next)
        n += w->work ? w->work->reached : 0;
    return n;
}

static void open_held_out(void)
{
    d.eval = (source){.name = "eval", .data = &data, .wanted = true, .opened = true};
    MUST(conf_copy(&options, &d.eval.options));
    d.eval.clips = d.train.clips;
    FUZZ_HOLDS((d.eval.stream_json = strdup(d.train.stream_json)) &&
               (d.eval.index_path = strdup("/nowhere/index")));
    MUST(index_build_start(&d.eval));
}

static void turn_of_the_loop(void)
{
    const int64_t now = clock_ns();
    consumers_deliver(&d);
    seats_check_time(&d, now);
    consumers_still_here(&d, now);
    planning_turn(&d);
    d.slice_end_ns = INT64_MAX; /* so that the same input always does the same */
    consumers_greet(&d);
    seats_schedule(&d);
    check_leases();
}

static void throw_away(void)
{
    wire_msg *m = NULL;
    while (d.consumer_seats)
        consumer_close(&d, d.consumer_seats, NULL);
    supervisors_leave(&d, false);
    while (d.seats) {
        lease_free(&d.seats->work);
        lease_free(&d.seats->ahead);
        seat_gone(&d, d.seats, LOSS_OUTSIDE, "end of the input");
    }
    while (d.book.lost) {
        lease *l = lease_book_take(&d.book, true);
        lease_free(&l);
    }
    quarantine_done(&d.train.bad);
    d.eval.data = NULL;
    source_done(&d.eval);
    lease_book_init(&d.book, 2);
    d.counts = (serve_counts){0};
    d.peer_limits = (peer_limits){0};
    d.breaches = (breaches){0};
    d.stopping = d.draining = false;
    d.drain_ns = d.retired_ns = 0;
    d.outcome = ST_OK;
    d.turn = 0;
    d.local.child[0] = (local_child){.pid = NO_PROCESS};
    MUST(wire_msg_new(&m));
    for (int s = 0; s < SOCKETS; s++)
        for (int k = 0; k < PEERS; k++)
            while (wire_recv(peer_socket[s][k], 0, NULL, m) == ST_OK)
                ; /* discard what the peer was sent */
    wire_msg_free(&m);
}

static void tell_message(const uint8_t *head, const uint8_t *text, size_t size)
{
    static void (*const handle[])(dispatch *, const wire_peer *,
                                  wire_msg *) = {consumer_message, seat_message, control_message};
    const int s = head[0] & 3, k = head[0] >> 2 & 1;
    frame f = {.kind = (frame_kind)head[1],
               .row = (uint64_t)(head[2] | head[3] << 8),
               .block_bytes = size};
    uint8_t header[FRAME_BYTES];
    wire_msg *m = NULL;
    if (s == SOCKETS)
        return;
    frame_encode(&f, header);
    MUST(wire_msg_new(&m));
    if (head[0] & 8 && size >= FRAME_BYTES) {
        MUST(wire_msg_add(m, text, FRAME_BYTES));
        MUST(wire_msg_add(m, text + FRAME_BYTES, size - FRAME_BYTES));
    } else {
        MUST(wire_msg_add(m, header, sizeof header));
        MUST(wire_msg_add(m, text, size));
    }
    const int64_t reached = items_reached(), before_ns = clock_ns();
    d.peer_limits.reading = &peer[s][k];
    handle[s](&d, &peer[s][k], m);
    d.peer_limits.reading = NULL;
    FUZZ_HOLDS(items_reached() <= reached ||
               d.answered_ns >= before_ns); /* progress counts as a sign of life */
    wire_msg_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { HEAD = 6 };
    if (!d.net)
        make_dispatcher();
    if (size > 0 && bytes[0] & 1)
        open_held_out();
    bytes += size > 0;
    size -= size > 0;
    for (int n = 0; n < MOST_MESSAGES && size >= HEAD && !d.stopping; n++) {
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
