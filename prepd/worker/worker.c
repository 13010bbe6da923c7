/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c: the life of a worker: start, connect, JOIN, TERMS, then lease after lease.
 *
 * After TERMS the process enters the sandbox and cannot connect again; when the connection ends, a
 * supervised worker asks to be started again (PROC_EXIT_AGAIN), and a child of the dispatcher ends.
 */
#include "prepd/worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/words.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/agreed/ticket.h"
#include "prepd/worker/row_compare.h"
#include "prepd/worker/last_words.h"
#include "prepd/worker/row_prints.h"
#include "prepd/worker/sandbox.h"
#include "prepd/worker/media/image_files.h"
#include "proto/row/frame.h"

enum {
    POLL_MS = 200,        /* longest wait before SIGTERM is noticed */
    ASK_AGAIN_MS = 10000, /* an idle worker repeats JOIN to say that it is there */
    GIVE_UP_MS = 60000,   /* leave when the dispatcher has been silent for this long */
    RECONNECT_MS = 500,
    MOST_DAMAGED = 1024, /* damaged pictures of a row that are reported */
    MOST_WAIT_S = 7200,  /* that a dispatcher can ask for */
};
static const int64_t TELL_EVERY_NS = 50000000; /* between two ONs of an index lease */

typedef struct worker {
    const worker_options *options;
    const image_api *images;
    hash128 fingerprint;
    wire *net;
    wire_socket *socket;
    char ticket[TICKET_TEXT]; /* of a child of the dispatcher; "" for a supervised one */
    char *terms;              /* as received; other terms come from another daemon: start again */
    workshop shop;
    bool ready;
    uint64_t lease;
    bool each;         /* the lease was lost before: report every record */
    int64_t told_ns;   /* when a record was last reported; 0 for not yet */
    int64_t leases;    /* done so far */
    int64_t heard_ns;  /* when the dispatcher last sent something */
    bool heard;        /* a dispatcher is, or was, at the endpoint */
    bool leave, again; /* leave; and ask to be started again */
    int64_t wait_ns;   /* but only after this time */
} worker;

/* Set by SIGTERM; the lease in work is finished first. */
static volatile sig_atomic_t asked_to_go;

static void on_term(int sig)
{
    (void)sig;
    asked_to_go = 1;
}

static status send_json(worker *self, int kind, uint64_t number, json_writer *out)
{
    char *text;
    size_t size;
    TRY(json_writer_take(out, &text, &size));
    status st = wire_send_json(self->socket, NULL, kind, number, text, size);
    free(text);
    return st;
}

static status send_join(worker *self)
{
    json_writer out;
    char host[64] = "";
    fingerprints prints = self->shop.prints;
    if (gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "localhost");
    fingerprints_set(&prints, PRINT_IMAGES, self->fingerprint);
    json_writer_init(&out);
    json_begin_object(&out);
    json_put_key_cstr(&out, "version", TESSERA_VERSION);
    json_put_key_cstr(&out, "build", prepd_build);
    json_put_key_int(&out, "form", LEASE_FORM);
    fingerprints_put(&prints, &out);
    json_put_key_cstr(&out, "host", host);
    json_put_key_int(&out, "pid", getpid());
    if (self->ticket[0])
        json_put_key_cstr(&out, "ticket", self->ticket);
    if (self->options->supervisor)
        json_put_key_bool(&out, "ship", !self->options->data_root);
    json_end_object(&out);
    status st = send_json(self, KIND_JOIN, 0, &out);
    json_writer_done(&out);
    return st;
}

static status tell_on(void *user, int64_t item)
{
    worker *self = user;
    char json[48];
    time_limit_start();
    int length = snprintf(json, sizeof(json), "{\"item\":%lld}", (long long)item);
    return wire_send_json(self->socket, NULL, KIND_ON, self->lease, json, (size_t)length);
}

/* Reports an item of an index lease. A record takes microseconds and its report longer, so only
 * some are reported. If the lease is lost, it is given out again with `each` set: then every item
 * is reported, and a second loss shows which item is to blame. */
static status tell_record(void *user, int64_t item)
{
    worker *self = user;
    const int64_t now = clock_ns();
    if (!self->each && self->told_ns && now - self->told_ns < TELL_EVERY_NS) {
        time_limit_start();
        return ST_OK;
    }
    self->told_ns = now;
    return tell_on(user, item);
}

/* Makes the fingerprints of rows. A child of the dispatcher is of its build and need not. */
static status make_row_prints(worker *self)
{
    workshop *shop = &self->shop;
    if (!self->options->supervisor)
        return ST_OK;
    TRY(row_prints_make(self->images, &shop->prints));
    return shop->videos ? row_prints_make_clips(self->images, shop->videos, &shop->prints) : ST_OK;
}

static status take_terms(worker *self, const json_value *value, span text)
{
    if (self->terms) {
        if (strlen(self->terms) != text.size || memcmp(self->terms, text.data, text.size) != 0)
            self->leave = self->again = true; /* another daemon is at this address now */
        return ST_OK;
    }
    TRY(workshop_init(&self->shop, self->options, self->images, value));
    TRY(make_row_prints(self));
    TRY(send_join(self)); /* again, now with the other fingerprints */
    TRY(time_limit_install(self->shop.train.prepd_sample_timeout));
    TRY(image_cache_open(&self->shop.train, self->fingerprint, &self->shop.cache));
    TRY(sandbox_enter());
    self->ready = true;
    self->terms = strndup((const char *)text.data, text.size);
    log_init("worker", self->shop.train.log_level, self->shop.train.log_json);
    return self->terms ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for the terms");
}

static void put_damaged(const workshop *shop, json_writer *out)
{
    json_begin_key_array(out, "damaged");
    for (int64_t i = 0; i < shop->n_damaged && i < MOST_DAMAGED; i++) {
        json_begin_object(out);
        json_put_key_int(out, "id", shop->damaged[i].sample);
        json_put_key_int(out, "image", shop->damaged[i].image);
        json_put_key_cstr(out, "warning", shop->damaged[i].warning);
        json_end_object(out);
    }
    json_end_array(out);
}

/* Whether each of the rows that a lease brings is the one that was made here. */
typedef struct verdicts {
    bool same[MOST_COMPARED];
    int count;
} verdicts;

/* Compares what was made with the rows that came with the lease. A report goes before each, so that
 * a row which kills its decoder is blamed for that, and no sample. */
static status compare_rows(worker *self, const json_value *lease, const wire_msg *made,
                           verdicts *out)
{
    workshop *shop = &self->shop;
    compared_rows rows;
    TRY(row_compare_read(lease, shop->parts, &rows));
    int64_t since = clock_ns();
    for (int i = 0; i < rows.count; i++) {
        char json[32];
        time_limit_start();
        const int length = snprintf(json, sizeof json, "{\"comparing\":%d}", i);
        TRY(wire_send_json(self->socket, NULL, KIND_ON, self->lease, json, (size_t)length));
        workshop_begin_image(shop);
        TRY(row_compare(shop->packer, &shop->made, made, shop->parts, &rows, i, &shop->sample,
                        &out->same[i]));
        workshop_stage_end(shop, STAGE_PACK, &since);
    }
    out->count = rows.count;
    return ST_OK;
}

/* Reports where the lease's time went, which pictures were damaged, and which rows of others are
 * the same. This goes before the answer, and messages of a worker keep their order, so a consumer
 * that has a row finds it in the status. */
static status tell_stages(worker *self, const verdicts *found)
{
    const workshop *shop = &self->shop;
    json_writer out;
    json_writer_init(&out);
    json_begin_object(&out);
    json_put_key_int(&out, "item", -1);
    json_begin_key_array(&out, "stage_ns");
    for (int i = 0; i < N_STAGES; i++)
        json_put_int(&out, shop->stage_ns[i]);
    json_end_array(&out);
    json_begin_key_array(&out, "cache");
    json_put_int(&out, shop->cache_hits);
    json_put_int(&out, shop->cache_misses);
    json_end_array(&out);
    if (shop->n_damaged > 0)
        put_damaged(shop, &out);
    if (found->count > 0) {
        json_begin_key_array(&out, "same");
        for (int i = 0; i < found->count; i++)
            json_put_bool(&out, found->same[i]);
        json_end_array(&out);
    }
    json_end_object(&out);
    const status st = send_json(self, KIND_ON, self->lease, &out);
    json_writer_done(&out);
    return st;
}

static status do_lease(worker *self, const json_value *value, uint64_t number)
{
    const char *kind;
    char *json = NULL;
    wire_msg *message = NULL;
    verdicts found = {.count = 0};
    status st = ST_OK;
    if (!self->ready)
        return FAIL(ST_PROTOCOL, "a lease came before the terms");
    self->lease = number;
    TRY(json_want_text(value, "kind", "lease", &kind));
    if (strcmp(kind, "row") != 0) {
        self->each = json_bool(json_find(value, "each"), false);
        self->told_ns = 0;
        TRY(make_records(&self->shop, value, tell_record, self, &json));
        st = wire_send_json(self->socket, NULL, KIND_RECORDS, number, json, strlen(json));
        free(json);
        return st;
    }
    TRY(wire_msg_new(&message));
    st = make_row(&self->shop, value, tell_on, self, message, &json);
    if (st == ST_OK && !json)
        st = compare_rows(self, value, message, &found);
    if (st == ST_OK)
        st = tell_stages(self, &found);
    if (st == ST_OK && json)
        st = wire_send_json(self->socket, NULL, KIND_FAILED, number, json, strlen(json));
    else if (st == ST_OK)
        st = wire_send(self->socket, NULL, message);
    free(json);
    wire_msg_free(&message);
    return st;
}

/* Asks to be started again if it holds more than half of prepd.worker_bytes: libraries hold memory
 * that cannot be freed, and between two leases a worker may leave at any time. */
static status recycle(worker *self)
{
    const int64_t rss = proc_rss_bytes();
    if (rss <= self->shop.train.prepd_worker_bytes / 2)
        return ST_OK;
    log_debug("restarts after a lease: rss=%lld", (long long)rss);
    self->leave = self->again = true;
    return wire_send_json(self->socket, NULL, KIND_BYE, 0, "{}", 2);
}

/* BYE: the worker leaves, for good or to be started again, perhaps only after a while. */
static void take_leave(worker *self, const json_value *value)
{
    const int64_t wait_s = json_int(json_find(value, "wait_s"), 0);
    self->leave = true;
    self->again = json_bool(json_find(value, "again"), false);
    if (!self->again || wait_s <= 0)
        return;
    self->wait_ns = (wait_s < MOST_WAIT_S ? wait_s : MOST_WAIT_S) * 1000000000;
    log_warn("the daemon gives this worker no work for now: it comes back by itself seconds=%lld "
             "why=\"%s\"",
             (long long)(self->wait_ns / 1000000000),
             escape_text(json_text(json_find(value, "why"), "no reason given")).text);
}

/* Waits as long as the dispatcher asked for, without a connection. SIGTERM ends it. */
static void wait_to_come_back(worker *self)
{
    const int64_t until_ns = clock_ns() + self->wait_ns;
    while (!asked_to_go && clock_ns() < until_ns)
        usleep(POLL_MS * 1000);
    self->again &= !asked_to_go;
}

static status handle_frame(worker *self, const wire_msg *message)
{
    frame head;
    json_value *value = NULL;
    status st = ST_OK;
    TRY(wire_read_json(message, "dispatcher", &head, &value));
    if (head.kind == KIND_TERMS) {
        st = take_terms(self, value, wire_msg_part(message, 1));
    } else if (head.kind == KIND_LEASE) {
        last_words_busy(true);
        self->shop.parts = message;
        st = do_lease(self, value, head.row);
        self->shop.parts = NULL;
        time_limit_stop();
        last_words_busy(false);
        if (st == ST_OK)
            st = recycle(self);
    } else if (head.kind == KIND_BYE) {
        take_leave(self, value);
    } else if (head.kind == KIND_ERROR) {
        st = wire_error(value, "dispatcher");
    } else {
        st = FAIL_IN(ST_PROTOCOL, "dispatcher", "the dispatcher sent %s to a worker",
                     frame_kind_name(head.kind));
    }
    json_free(&value);
    return st;
}

/* Tells the dispatcher why this worker leaves. It may be on another machine and can show its user
 * the reason. */
static void say_why(worker *self, status why)
{
    const status_note note = *status_last();
    status st = wire_send_error(self->socket, NULL, 0, why);
    (void)st; /* the worker leaves either way */
    status_set(&note);
}

/* Serves one connection until BYE, an error, or its end (ST_UNAVAILABLE). */
static status serve_connection(worker *self)
{
    wire_msg *message = NULL;
    status st = ST_OK;
    TRY(wire_connect(self->net, self->options->endpoint, &self->socket));
    if (self->heard)
        wire_expect(self->socket);
    TRY_OR(done, wire_msg_new(&message));
    TRY_OR(done, send_join(self));
    int64_t asked_ns = clock_ns();
    while (!self->leave) {
        if (asked_to_go) {
            self->leave = true;
            st = wire_send_json(self->socket, NULL, KIND_BYE, 0, "{}", 2);
            break;
        }
        wire_msg_clear(message);
        st = wire_recv(self->socket, POLL_MS, NULL, message);
        const int64_t now = clock_ns();
        if (st == ST_OK) {
            st = handle_frame(self, message);
            self->heard_ns = asked_ns = clock_ns();
        } else if (st == ST_TIMEOUT) {
            st = ST_OK;
            if (now - self->heard_ns > (int64_t)GIVE_UP_MS * 1000000)
                st = FAIL_IN(ST_TIMEOUT, self->options->endpoint,
                             "the dispatcher has sent nothing for %d s", GIVE_UP_MS / 1000);
            else if (now - asked_ns > (int64_t)ASK_AGAIN_MS * 1000000) {
                st = send_join(self);
                asked_ns = now;
            }
        }
        if (st != ST_OK)
            break;
    }
    if (st != ST_OK && st != ST_UNAVAILABLE)
        say_why(self, st);
done:
    self->heard |= wire_greeted(self->socket);
    wire_msg_free(&message);
    wire_close(&self->socket);
    return st;
}

/* Where memory is short the kernel is to end a worker, whose lease is given out again, and neither
 * the daemon nor a trainer beside it. */
static void offer_to_kernel(void)
{
    static const char score[] = "500";
    const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, score, sizeof score - 1) < 0)
        log_debug("the kernel is not told to end this process first: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
}

static status start_worker(worker *self)
{
    TRY(proc_follow_parent(self->options->parent, SIGKILL)); /* works on a stopped process too */
    TRY(sandbox_shed_privileges());
    if (!self->options->supervisor)
        TRY(ticket_take(self->ticket));
    prctl(PR_SET_NAME, "prepd"); /* a program that runs from a descriptor is named by its number */
    offer_to_kernel();
    setsid(); /* leaves the terminal; fails only if the process leads a group already */
    const struct rlimit no_core = {0, 0}; /* crashes must not fill the disk with core files */
    if (setrlimit(RLIMIT_CORE, &no_core) != 0)
        return FAIL(ST_OS, "cannot turn core files off");
    const struct sigaction term = {.sa_handler = on_term};
    if (sigaction(SIGTERM, &term, NULL) != 0)
        return FAIL(ST_OS, "cannot set a signal handler");
    signal(SIGINT, SIG_IGN);  /* the dispatcher or supervisor handles interrupts */
    signal(SIGPIPE, SIG_IGN); /* the reader of our log may leave */
    mallopt(M_ARENA_MAX, 2); /* with more arenas, libvips' threads make the heap grow without end */
    setenv("VIPS_CONCURRENCY", "1", 1);
    TRY(last_words_install());
    TRY(image_load(self->options->program, &self->images));
    TRY(self->images->fingerprint(&self->fingerprint));
    self->heard_ns = clock_ns();
    TRY(wire_new(&self->net));
    return self->options->keys ? wire_use_keys(self->net, self->options->keys) : ST_OK;
}

status worker_run(const worker_options *options, int *out_code)
{
    worker self = {.options = options, .heard = options->heard};
    log_init("worker", LOG_INFO, false);
    status st = start_worker(&self);
    while (st == ST_OK && !self.leave) {
        st = serve_connection(&self);
        if (st != ST_UNAVAILABLE || self.leave)
            continue;
        if (options->supervisor &&
            self.ready) { /* in the sandbox it cannot connect again; its successor can */
            st = ST_OK;
            self.leave = self.again = true;
            break;
        }
        if (!options->supervisor) { /* a child of the dispatcher ends with it */
            st = ST_OK;
            break;
        }
        if (clock_ns() - self.heard_ns < (int64_t)GIVE_UP_MS * 1000000) {
            st = ST_OK; /* the daemon may come back */
            usleep(RECONNECT_MS * 1000);
        }
    }
    workshop_done(&self.shop);
    free(self.terms);
    wire_free(&self.net);
    if (st == ST_OK && self.wait_ns > 0)
        wait_to_come_back(&self);
    if (st == ST_OK)
        *out_code = self.again ? PROC_EXIT_AGAIN : 0;
    return st;
}
