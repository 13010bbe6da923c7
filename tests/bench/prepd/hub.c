/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c: measures what the dispatcher costs. Simulated workers answer every lease at once with the
 * same bytes, and consumers do not unpack rows, so the time that is left is the dispatcher's.
 *
 *   bench_hub ENDPOINT DAEMON_PID WORKERS CONSUMERS IMAGES IMAGE_BYTES SECONDS AHEAD_BYTES JOIN
 *             [KEYS]
 *
 * JOIN is what a worker of the daemon's build sends, as JSON.
 * The daemon is a real one without its own workers, and its index is there already. A row has a
 * block of BLOCK bytes and then IMAGES parts of IMAGE_BYTES. At the end it prints one line of
 * JSON. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compare.h"
#include "proto/session/client.h"
#include "tests/bench/prepd/turns.h"

enum { APART = 16, APART_US = 20000, BLOCK = 20000, MAX_PEERS = 1024, MAX_IO = 32, SETTLE_S = 2 };

static atomic_bool finish;
static const char *endpoint, *join, *keys;

typedef struct consumer {
    pthread_t thread;
    int64_t ahead;
    atomic_llong rows, bytes; /* since the last reset */
} consumer;

static void *consume(void *user)
{
    consumer *me = user;
    client *hub = NULL;
    wire_msg *message = NULL;
    const client_options options = {.endpoint = endpoint,
                                    .keys = keys,
                                    .stream = "train",
                                    .ranks = 1,
                                    .credit_bytes = me->ahead,
                                    .timeout_ms = 60000};
    must(client_open(&options, &hub));
    must(wire_msg_new(&message));
    while (!finish) {
        frame head;
        wire_msg_clear(message);
        must(client_next_raw(hub, message, &head));
        me->rows++;
        me->bytes += (int64_t)wire_msg_bytes(message);
    }
    wire_msg_free(&message);
    client_close(&hub);
    return NULL;
}

typedef struct workers {
    pthread_t thread;
    int count;
    uint32_t images;
    int64_t image_bytes;
    wire_msg *row; /* the parts of every answer, without its header */
} workers;

static void make_row(workers *crew)
{
    uint8_t *part;
    must(wire_msg_new(&crew->row));
    must(wire_msg_add_space(crew->row, FRAME_BYTES, &part));
    memset(part, 0, FRAME_BYTES);
    for (uint32_t i = 0; i <= crew->images; i++) {
        size_t count = i == 0 ? BLOCK : (size_t)crew->image_bytes;
        must(wire_msg_add_space(crew->row, count, &part));
        memset(part, (int)i, count);
    }
}

static void answer_lease(const workers *crew, wire_socket *socket, wire_msg *out, uint64_t number)
{
    uint8_t head[FRAME_BYTES];
    const frame header = {.kind = KIND_ROW,
                          .row = number,
                          .n_images = crew->images,
                          .block_bytes = BLOCK,
                          .image_bytes = crew->images * (uint64_t)crew->image_bytes};
    frame_encode(&header, head);
    wire_msg_clear(out);
    must(wire_msg_share(out, crew->row));
    must(wire_msg_set(out, 0, head, sizeof head));
    must(wire_send(socket, NULL, out));
}

/* Runs all simulated workers in one thread, with a connection each. */
static void *work(void *user)
{
    const workers *crew = user;
    wire *net = NULL;
    wire_msg *in = NULL, *out = NULL;
    wire_wait *item = calloc((size_t)crew->count, sizeof *item);
    char *leases = NULL;
    if (!item)
        must(FAIL(ST_NO_MEMORY, "no memory for %d workers", crew->count));
    must(wire_new(&net));
    if (keys)
        must(wire_use_keys(net, keys));
    must(wire_msg_new(&in));
    must(wire_msg_new(&out));
    must(wire_beside(endpoint, 1, &leases));
    for (int i = 0; i < crew->count; i++) {
        /* The workers come one by one, as processes that start do. libzmq gives each connection to
         * the thread that has the fewest, but does not count those that it has just given. */
        if (crew->count <= APART)
            usleep(APART_US);
        must(wire_connect(net, leases, &item[i].socket));
        must(wire_send_json(item[i].socket, NULL, KIND_JOIN, 0, join, strlen(join)));
    }
    while (!finish) {
        must(wire_poll(item, (size_t)crew->count, 100));
        for (int i = 0; i < crew->count; i++) {
            frame head;
            if (!item[i].ready)
                continue;
            wire_msg_clear(in);
            status st = wire_recv(item[i].socket, 0, NULL, in);
            if (st == ST_TIMEOUT)
                continue;
            must(st);
            json_value *value;
            must(wire_read_json(in, "daemon", &head, &value));
            if (head.kind == KIND_LEASE)
                answer_lease(crew, item[i].socket, out,
                             (uint64_t)json_int(json_find(value, "row"), 0));
            else if (head.kind == KIND_ERROR)
                must(wire_error(value, "daemon"));
            json_free(&value);
        }
    }
    for (int i = 0; i < crew->count; i++)
        wire_close(&item[i].socket);
    wire_msg_free(&in);
    wire_msg_free(&out);
    wire_free(&net);
    free(leases);
    free(item);
    return NULL;
}

static int64_t rss_of(const char *pid)
{
    char path[64];
    long long pages = 0, all;
    snprintf(path, sizeof path, "/proc/%s/statm", pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%lld %lld", &all, &pages) != 2)
        must(FAIL_IN(ST_NO_INPUT, path, "the daemon is gone"));
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* CPU time of the daemon's threads. libzmq's are known by the names that it gives them. */
typedef struct thread_times {
    int64_t io[MAX_IO], own; /* own: of the daemon's first thread, the dispatcher's */
} thread_times;

static thread_times times_of(const char *pid)
{
    char path[600], name[64];
    thread_times times = {0};
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        must(FAIL_IN(ST_NO_INPUT, path, "the daemon is gone"));
    for (struct dirent *entry; (entry = readdir(tasks));) {
        long long ns = 0;
        int nth = -1;
        snprintf(path, sizeof path, "/proc/%s/task/%s/comm", pid, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file)
            continue;
        const char *io = fgets(name, sizeof name, file) ? strstr(name, "/IO/") : NULL;
        fclose(file);
        if (io)
            nth = atoi(io + strlen("/IO/"));
        snprintf(path, sizeof path, "/proc/%s/task/%s/schedstat", pid, entry->d_name);
        if (!(file = fopen(path, "r")))
            continue;
        if (fscanf(file, "%lld", &ns) != 1)
            ns = 0;
        fclose(file);
        if (nth >= 0 && nth < MAX_IO)
            times.io[nth] = ns;
        else if (strcmp(entry->d_name, pid) == 0)
            times.own = ns;
    }
    closedir(tasks);
    return times;
}

/* Prints ,"own_ns":N,"io_ns":[N,...] for the threads that did anything. */
static void print_times(const thread_times *from, const thread_times *to)
{
    printf(",\"own_ns\":%lld,\"io_ns\":[", (long long)(to->own - from->own));
    for (int k = 0; k < MAX_IO && to->io[k]; k++)
        printf("%s%lld", k ? "," : "", (long long)(to->io[k] - from->io[k]));
    printf("]");
}

int main(int argc, char **argv)
{
    static consumer consumers[MAX_PEERS];
    static int64_t rows[MAX_PEERS];
    if (argc != 10 && argc != 11)
        must(FAIL(ST_USAGE, "bench_hub ENDPOINT DAEMON_PID WORKERS CONSUMERS IMAGES IMAGE_BYTES "
                            "SECONDS AHEAD_BYTES JOIN [KEYS]"));
    endpoint = argv[1];
    join = argv[9];
    keys = argv[10]; /* NULL without keys */
    workers crew = {
        .count = atoi(argv[3]), .images = (uint32_t)atoi(argv[5]), .image_bytes = atoll(argv[6])};
    const int workers_ = atoi(argv[4]);
    const int seconds = atoi(argv[7]);
    if (crew.count < 1 || crew.count > MAX_PEERS || workers_ < 1 || workers_ > MAX_PEERS)
        must(FAIL(ST_USAGE, "1 to %d workers and consumers", MAX_PEERS));
    make_row(&crew);
    if (pthread_create(&crew.thread, NULL, work, &crew) != 0)
        must(FAIL(ST_OS, "no thread"));
    /* Each consumer has a separate thread, since a client's calls wait. */
    for (int i = 0; i < workers_; i++) {
        if (workers_ <= APART)
            usleep(APART_US);
        consumers[i].ahead = atoll(argv[8]);
        if (pthread_create(&consumers[i].thread, NULL, consume, &consumers[i]) != 0)
            must(FAIL(ST_OS, "no thread"));
    }
    sleep(SETTLE_S);
    for (int i = 0; i < workers_; i++)
        consumers[i].rows = consumers[i].bytes = 0;
    const thread_times before = times_of(argv[2]);
    const int64_t rss = rss_of(argv[2]), cpu = cpu_of(argv[2]), wall = clock_ns();
    sleep((unsigned)seconds);
    const int64_t spent = cpu_of(argv[2]) - cpu, passed = clock_ns() - wall;
    const int64_t rss_after = rss_of(argv[2]);
    const thread_times after = times_of(argv[2]);
    int64_t all = 0, bytes = 0;
    for (int i = 0; i < workers_; i++) {
        rows[i] = consumers[i].rows;
        all += rows[i];
        bytes += consumers[i].bytes;
    }
    qsort(rows, (size_t)workers_, sizeof *rows, compare_ints);
    printf("{\"rows\":%lld,\"bytes\":%lld,\"wall_ns\":%lld,\"cpu_ns\":%lld,\"rss\":[%lld,%lld],"
           "\"least\":%lld,\"most\":%lld",
           (long long)all, (long long)bytes, (long long)passed, (long long)spent, (long long)rss,
           (long long)rss_after, (long long)rows[0], (long long)rows[workers_ - 1]);
    print_times(&before, &after);
    printf("}\n");
    fflush(stdout);
    /* consumers and workers end with the process, and the daemon sees peers that have gone */
    _exit(0);
}
