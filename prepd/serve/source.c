/* source.c: opens a data section: its data set, its index (from the cache, or built by the
 * workers), its identity.
 *
 * The files are opened by a thread beside the loop (struct opening), since a large data set takes
 * time and its file system may hang. Of several prepd that need the same index, one builds it and
 * the others wait for its lock. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/model_folder/model_files.h"
#include "prepd/dataset/cache_folder.h"
#include "prepd/sample/chat_template.h"
#include "prepd/serve/ship.h"
#include "prepd/serve/dispatch_state.h"

enum {
    WAIT_MS = 100,    /* between two tries to take a lock that another process holds */
    LEAVE_LOOKS = 20, /* how often a daemon that stops looks whether the waiting thread has left */
};

/* A folder has splits, one of which is held out. A single file has none, and must not be both
 * trained on and held out. */
static status check_held_out(const conf *c)
{
    struct stat info;
    if (c->eval_path[0] || c->data_format == DATA_VQAV2 ||
        (stat(c->data_path, &info) == 0 && S_ISDIR(info.st_mode)))
        return ST_OK;
    return FAIL_IN(ST_CONFIG, c->data_path,
                   "data.path is not a folder with splits, so nothing of it is held out; name the "
                   "held-out data in eval.path");
}

static status check_template(const source *s)
{
    chat_template t;
    TRY(chat_template_check(&s->c, &t));
    if (t.path[0] && !t.releases)
        log_warn("the chat template %s is not used: conversations are written as the template of "
                 "Qwen3-VL Instruct does (model.chat_template is instruct) section=%s",
                 t.path, s->name);
    return ST_OK;
}

/* Checks the template of a mixture, once its sources are known. Plain texts alone need no template.
 */
static status check_mixture(const source *s)
{
    const dataset_part *parts;
    const int n = s->data->v->parts ? s->data->v->parts(s->data, &parts) : 0;
    bool plain = true;
    arena a;
    arena_init(&a, 0);
    status st = ST_OK;
    for (int k = 0; k < n && st == ST_OK; k++) {
        sample first = {.plain = true};
        if (parts[k].n > 0)
            st = s->data->v->outline(s->data, parts[k].first, &a, &first);
        plain = plain && first.plain;
    }
    arena_done(&a);
    return st == ST_OK && !plain ? check_template(s) : st;
}

/* Does everything that needs the options alone, so that their mistakes are told at once. */
static status resolve_options(dispatch *d, source *s)
{
    if (s == &d->eval) {
        TRY(check_held_out(d->c));
        TRY(conf_eval(d->c, &s->c));
    } else {
        TRY(conf_copy(d->c, &s->c)); /* a copy, since a thread that hangs outlives the options */
    }
    TRY(model_files_told(&s->c));
    TRY(model_files_digest(&s->c, &s->model_digest));
    if (s->c.data_format != DATA_MIXTURE)
        TRY(check_template(s));
    TRY(conf_stream_json(d->c, s->model_digest, &s->stream_json));
    return clip_limits_load(&s->c, &s->clips);
}

/* Identifies the index file that lies there now, to notice when another prepd puts a new one in its
 * place. */
typedef struct file_mark {
    ino_t inode; /* 0 if there is no file */
    struct timespec changed;
} file_mark;

static file_mark mark_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return (file_mark){0};
    return (file_mark){info.st_ino, info.st_ctim};
}

static bool same_mark(file_mark a, file_mark b)
{
    return a.inode == b.inode && a.changed.tv_sec == b.changed.tv_sec &&
           a.changed.tv_nsec == b.changed.tv_nsec;
}

/* Opens the files of a section beside the loop. The thread owns `made` until `done` is set, and it
 * reads the options that resolve_options gave it; the loop touches neither. */
struct opening {
    pthread_t thread;
    source made;
    const conf *c;
    status st;
    status_note note;         /* the thread's */
    char holder[LOCK_HOLDER]; /* the process that builds the index */
    atomic_bool waits; /* the thread waits for `holder`, which was written before this was set */
    atomic_bool leave; /* the section is no longer wanted; read while the thread waits */
    atomic_bool done;
};

/* Takes the lock on the index, waiting for another process that builds it. False if no lock can be
 * taken here, or the index is no longer wanted. */
static bool lock_index(opening *o, cache_lock *out)
{
    const char *path = o->made.index_path;
    char holder[LOCK_HOLDER];
    for (;;) {
        const lock_answer answer = cache_lock_take(path, out, holder);
        if (answer == LOCK_OURS)
            return true;
        if (answer == LOCK_NONE) {
            log_info(
                "the index cannot be locked, so other daemons that start now build it as well: %s",
                status_text());
            return false;
        }
        if (!atomic_load(&o->waits)) {
            log_warn("the index is being built by %s: waiting for it section=%s file=%s", holder,
                     o->made.name, path);
            memcpy(o->holder, holder, sizeof(holder));
            atomic_store(&o->waits, true);
        }
        if (atomic_load(&o->leave))
            return false;
        usleep(WAIT_MS * 1000);
    }
}

/* Loads the index from the cache; or finds none and takes the lock, so that only one prepd builds
 * it. */
static status find_index(opening *o)
{
    source *s = &o->made;
    for (;;) {
        const file_mark seen = mark_of(s->index_path);
        const status st = source_load_index(s);
        if (st == ST_OK) {
            log_info("index loaded section=%s file=%s", s->name, s->index_path);
            return ST_OK;
        }
        if (st != ST_NO_INPUT)
            log_warn("index is built again: %s", status_text());
        if (!s->index_path[0] || !lock_index(o, &s->lock) ||
            same_mark(seen, mark_of(s->index_path)))
            return ST_OK;           /* it is to be built here */
        cache_lock_leave(&s->lock); /* it was made meanwhile; all that waited can read it at once */
    }
}

static status find_place(source *s)
{
    char folder[PATH_MAX], key[HASH_TEXT], path[PATH_MAX + HASH_TEXT + 16] = "";
    TRY(source_index_key(s, &s->index_key));
    const status found = cache_folder(&s->c, folder);
    if (found != ST_OK && s->c.prepd_cache_dir[0])
        return found;
    if (found !=
        ST_OK) /* the index is only a cache, so the daemon can do without a folder for it */
        log_warn("the index is not kept and will be built at every start: %s", status_text());
    hash_print(s->index_key, key);
    if (found == ST_OK)
        snprintf(path, sizeof(path), "%s/index-%s.tsx", folder, key);
    s->index_path = strdup(path);
    return s->index_path ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a path");
}

/* Opens the data set, which borrows o->c, and loads its index if the cache has it. It takes seconds
 * where there are millions of samples. */
static status open_files(opening *o)
{
    source *s = &o->made;
    TRY(dataset_open(o->c, &s->data));
    if (o->c->data_ship)
        TRY(ship_check(s->data));
    TRY(check_mixture(s));
    TRY(find_place(s));
    log_info("data set opened section=%s samples=%lld images=%lld", s->name,
             (long long)s->data->v->samples(s->data), (long long)s->data->v->images(s->data));
    return find_index(o);
}

/* The files are open: makes the section ready, or begins to build its index. */
static status opened(dispatch *d, source *s)
{
    s->opened = true;
    if (!d->videos && s->data->v->videos && s->data->v->videos(s->data)) {
        d->videos = true; /* workers get these TERMS before any lease with a video */
        TRY(dispatch_new_terms(d));
        for (worker_seat *w = d->seats; w; w = w->next)
            w->proved = false; /* it gets no work before it has started anew */
    }
    s->ready = s->index != NULL;
    return s->ready ? ST_OK : index_build_start(s);
}

static void *open_thread(void *user)
{
    opening *o = user;
    o->st = open_files(o);
    o->note = *status_last();
    atomic_store(&o->done, true);
    return NULL;
}

static status open_beside(source *s)
{
    opening *o = calloc(1, sizeof(*o));
    if (!o)
        return FAIL(ST_NO_MEMORY, "no memory to open a data set");
    o->c = &s->c;
    o->made =
        (source){.name = s->name, .c = s->c, .model_digest = s->model_digest, .clips = s->clips};
    const int err = pthread_create(&o->thread, NULL, open_thread, o);
    if (err != 0) {
        free(o);
        return FAIL(ST_OS, "no thread to open the data set: %s", strerror(err));
    }
    s->opening = o;
    return ST_OK;
}

status source_want(dispatch *d, source *s)
{
    if (s->wanted)
        return ST_OK;
    status st = resolve_options(d, s);
    if (st == ST_OK)
        st = open_beside(s);
    if (st != ST_OK)
        source_done(s);
    s->wanted = st == ST_OK;
    return st;
}

/* Ends the thread and takes what it made. */
static status take_over(source *s)
{
    opening *o = s->opening;
    pthread_join(o->thread, NULL);
    s->opening = NULL;
    s->data = o->made.data;
    s->index = o->made.index;
    s->index_path = o->made.index_path;
    s->index_key = o->made.index_key;
    s->lock = o->made.lock;
    const status st = o->st;
    status_set(&o->note);
    free(o);
    return st;
}

const char *source_waits_for(const source *s)
{
    return s->opening && !atomic_load(&s->opening->done) && atomic_load(&s->opening->waits)
               ? s->opening->holder
               : NULL;
}

status source_advance(dispatch *d, source *s)
{
    if (!s->opening || !atomic_load(&s->opening->done))
        return ST_OK;
    status st = take_over(s);
    if (st == ST_OK)
        st = opened(d, s);
    return st;
}

/* Tells the thread to leave and gives it a moment. A thread that waits for the lock leaves at once;
 * one that has the lock by now may be reading. */
static void leave_lock(opening *o)
{
    atomic_store(&o->leave, true);
    for (int k = 0; k < LEAVE_LOOKS && !atomic_load(&o->done); k++)
        usleep(WAIT_MS * 1000);
}

void source_done(source *s)
{
    const char *name = s->name;
    if (source_waits_for(s))
        leave_lock(s->opening);
    if (s->opening && !atomic_load(&s->opening->done)) {
        /* The file system hangs, and the thread with it. Both end with the process. */
        pthread_detach(s->opening->thread);
        free(s->stream_json);
        s->stream_json = NULL;
        return; /* s->opening stays, and so must everything that the thread reads */
    }
    if (s->opening && take_over(s) != ST_OK)
        log_debug("data set not opened: %s", status_text());
    cache_lock_leave(&s->lock);
    plan_free(&s->plans[PLAN_PACKED].plan);
    plan_free(&s->plans[PLAN_SAMPLES].plan);
    quarantine_done(&s->bad);
    quarantine_done(&s->damaged);
    index_free(&s->index);
    dataset_close(&s->data);
    free(s->index_path);
    free(s->stream_json);
    conf_done(&s->c);
    *s = (source){.name = name};
}
