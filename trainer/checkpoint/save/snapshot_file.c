/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot_file.c: see snapshot_file.h. Blocks are mapped. Head, records and texts are read and
 * written by calls, which report a full file system instead of ending the process. */
#include "trainer/checkpoint/save/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/base/file.h"
#include "trainer/device/host_memory.h"

enum {
    VERSION = 1,
    PAGE = 4096,
    TEXT_ROOM = 1 << 24, /* a hole in the file as far as a text does not fill it */
    PIECE = 1 << 24,     /* bytes that a thread hashes at once */
    THREADS_MAX = 16
};
static const char MAGIC[8] = "tsrsnap";
static const double GIB = 1073741824.0;

typedef struct head {
    char magic[sizeof MAGIC];
    int64_t version, blocks, bytes[SNAPSHOT_BLOCKS];
    int64_t layout_bytes, data, side_bytes, text;
    hash128 run, layout;
    hash128 own; /* of all members before it */
} head;

typedef struct record {
    int64_t step, text_bytes;
    hash128 text, block[SNAPSHOT_BLOCKS];
    hash128 own; /* of all members before it, and of the head's */
} record;

struct snapshot_file {
    int fd;
    char path[STATUS_PATH_MAX];
    head head;
    char *data; /* [SNAPSHOT_SIDES * side_bytes] mapped */
    record record[SNAPSHOT_SIDES];
};

static int64_t round_up(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static head head_of(const snapshot_shape *shape)
{
    head made;
    memset(&made, 0, sizeof made); /* gaps too, since all bytes are hashed */
    memcpy(made.magic, MAGIC, sizeof MAGIC);
    made.version = VERSION;
    made.blocks = shape->blocks;
    made.layout_bytes = (int64_t)strlen(shape->layout);
    made.run = shape->run;
    made.layout = hash_bytes(shape->layout, strlen(shape->layout));
    for (int i = 0; i < shape->blocks; i++) {
        made.bytes[i] = shape->bytes[i];
        made.side_bytes += round_up(shape->bytes[i]);
    }
    made.data = round_up((1 + SNAPSHOT_SIDES) * PAGE + made.layout_bytes);
    made.text = made.data + SNAPSHOT_SIDES * made.side_bytes;
    made.own = hash_bytes(&made, offsetof(head, own));
    return made;
}

int64_t snapshot_file_bytes(const snapshot_shape *shape)
{
    return head_of(shape).text;
}

static hash128 record_hash(const record *of, const head *in)
{
    return hash_chain(hash_bytes(of, offsetof(record, own)), in->own);
}

static status read_at(const snapshot_file *file, void *out, int64_t bytes, int64_t at)
{
    const int64_t got = file_read_all(file->fd, out, (size_t)bytes, at);
    return got == bytes ? ST_OK
                        : FAIL_IN(ST_BAD_INPUT, file->path, "it cannot be read: %s",
                                  got < 0 ? strerror(errno) : "it ends too early");
}

static status write_at(const snapshot_file *file, const void *data, int64_t bytes, int64_t at)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t put =
            pwrite(file->fd, (const char *)data + done, (size_t)(bytes - done), (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return FAIL_IN(ST_IO, file->path, "it cannot be written: %s", strerror(errno));
        done += put;
    }
    return ST_OK;
}

static status map_data(snapshot_file *file)
{
    const size_t bytes = (size_t)(SNAPSHOT_SIDES * file->head.side_bytes);
    if (bytes == 0)
        return ST_OK;
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, (off_t)file->head.data);
    if (at == MAP_FAILED)
        return FAIL_IN(ST_NO_MEMORY, file->path, "it cannot be mapped: %s", strerror(errno));
    file->data = at;
    return ST_OK;
}

static status new_file(const char *path, snapshot_file **out)
{
    snapshot_file *file = calloc(1, sizeof *file);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for a snapshot");
    file->fd = -1;
    snprintf(file->path, sizeof file->path, "%s", path);
    *out = file;
    return ST_OK;
}

void snapshot_file_close(snapshot_file **held)
{
    snapshot_file *file = *held;
    if (!file)
        return;
    if (file->data)
        munmap(file->data, (size_t)(SNAPSHOT_SIDES * file->head.side_bytes));
    if (file->fd >= 0)
        close(file->fd);
    free(file);
    *held = NULL;
}

/* The folder may be open to all users, so a file that another one has put there is refused. */
static status own_file(const snapshot_file *file, struct stat *out)
{
    if (fstat(file->fd, out) != 0)
        return FAIL_IN(ST_OS, file->path, "%s", strerror(errno));
    if (!S_ISREG(out->st_mode) || out->st_uid != geteuid())
        return FAIL_IN(ST_CONFIG, file->path,
                       "this is not a file of this user: remove it, or choose another "
                       "checkpoint.memory_folder");
    return ST_OK;
}

/* Says how the file differs from what the run needs. */
static status compare_head(const snapshot_file *file, const head *wanted, int64_t bytes)
{
    const head *has = &file->head;
    const hash128 own = hash_bytes(has, offsetof(head, own));
    if (memcmp(has->magic, MAGIC, sizeof MAGIC) != 0 || !hash_equal(own, has->own))
        return FAIL_IN(ST_BAD_INPUT, file->path, "its head is not whole");
    if (has->version != VERSION)
        return FAIL_IN(ST_BAD_INPUT, file->path,
                       "it has version %lld, but this trainer reads version %d",
                       (long long)has->version, VERSION);
    if (!hash_equal(has->run, wanted->run))
        return FAIL_IN(ST_BAD_INPUT, file->path, "it is of another run");
    if (memcmp(has, wanted, sizeof *has) != 0)
        return FAIL_IN(ST_BAD_INPUT, file->path,
                       "it was written by ranks that store other parts of the model, or in "
                       "other dtypes");
    if (bytes < has->text)
        return FAIL_IN(ST_BAD_INPUT, file->path, "it is shorter than its head says");
    return ST_OK;
}

/* A record that is not whole becomes one of step 0. */
static status read_records(snapshot_file *file)
{
    for (int side = 0; side < SNAPSHOT_SIDES; side++) {
        record *to = &file->record[side];
        TRY(read_at(file, to, sizeof *to, (1 + side) * PAGE));
        if (!hash_equal(record_hash(to, &file->head), to->own) || to->text_bytes < 0 ||
            to->text_bytes > TEXT_ROOM)
            memset(to, 0, sizeof *to);
    }
    return ST_OK;
}

static status open_file(snapshot_file *file, const snapshot_shape *shape)
{
    const head wanted = head_of(shape);
    struct stat about;
    file->fd = open(file->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file->fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_CONFIG, file->path, "%s",
                       strerror(errno));
    TRY(own_file(file, &about));
    TRY(read_at(file, &file->head, sizeof file->head, 0));
    const status st = compare_head(file, &wanted, (int64_t)about.st_size);
    if (st != ST_OK) {
        memset(&file->head, 0, sizeof file->head);
        return st;
    }
    TRY(read_records(file));
    return map_data(file);
}

status snapshot_file_open(const char *path, const snapshot_shape *shape, snapshot_file **out)
{
    snapshot_file *file = NULL;
    TRY(new_file(path, &file));
    const status st = open_file(file, shape);
    if (st != ST_OK)
        snapshot_file_close(&file);
    else
        *out = file;
    return st;
}

status snapshot_file_space(const char *folder, double *out)
{
    struct statfs disk;
    host_memory memory;
    if (statfs(folder, &disk) != 0)
        return FAIL_IN(ST_CANT_CREATE, folder, "%s", strerror(errno));
    double room = (double)disk.f_bavail * (double)disk.f_bsize;
    if (disk.f_type == TMPFS_MAGIC) {
        TRY(host_memory_read("", &memory));
        room = (double)memory.available < room ? (double)memory.available : room;
    }
    *out = room;
    return ST_OK;
}

status snapshot_file_room(const char *folder, const snapshot_shape *shape, int ranks)
{
    const double wanted = (double)snapshot_file_bytes(shape) * ranks;
    double room;
    TRY(snapshot_file_space(folder, &room));
    if (wanted <= room)
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, folder,
                   "two copies of values and moments of %d rank%s take %.3f GiB, and there is room "
                   "for %.3f GiB",
                   ranks, ranks == 1 ? "" : "s", wanted / GIB, room / GIB);
}

static status make_file(snapshot_file *file, const snapshot_shape *shape)
{
    const head made = head_of(shape);
    if (unlink(file->path) != 0 && errno != ENOENT)
        return FAIL_IN(ST_CANT_CREATE, file->path, "%s", strerror(errno));
    file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file->fd < 0)
        return FAIL_IN(ST_CANT_CREATE, file->path, "%s", strerror(errno));
    const int error = posix_fallocate(file->fd, 0, (off_t)made.text);
    if (error != 0)
        return FAIL_IN(ST_CANT_CREATE, file->path, "there is no room for %.3f GiB: %s",
                       (double)made.text / GIB, strerror(error));
    TRY(write_at(file, shape->layout, made.layout_bytes, (1 + SNAPSHOT_SIDES) * PAGE));
    file->head = made;
    TRY(map_data(file));
    return write_at(file, &made, sizeof made, 0);
}

status snapshot_file_make(const char *path, const snapshot_shape *shape, snapshot_file **out)
{
    snapshot_file *file = NULL;
    TRY(new_file(path, &file));
    const status st = make_file(file, shape);
    if (st != ST_OK) {
        if (file->fd >= 0)
            unlink(path);
        snapshot_file_close(&file);
        return st;
    }
    *out = file;
    return ST_OK;
}

int64_t snapshot_file_step(const snapshot_file *file, int side)
{
    return file->record[side].step;
}

void *snapshot_file_block(const snapshot_file *file, int side, int block)
{
    int64_t at = side * file->head.side_bytes;
    for (int i = 0; i < block; i++)
        at += round_up(file->head.bytes[i]);
    return file->data + at;
}

void *snapshot_file_memory(const snapshot_file *file, int64_t *out_bytes)
{
    *out_bytes = SNAPSHOT_SIDES * file->head.side_bytes;
    return file->data;
}

/* Pieces of a block, which threads hash in any order. */
typedef struct pieces {
    const char *data;
    int64_t bytes, count;
    hash128 *hash; /* [count] */
    atomic_llong next;
} pieces;

static void *hash_pieces(void *shared)
{
    pieces *all = shared;
    for (int64_t i; (i = atomic_fetch_add(&all->next, 1)) < all->count;) {
        const int64_t first = i * PIECE, left = all->bytes - first;
        all->hash[i] = hash_bytes(all->data + first, (size_t)(left < PIECE ? left : PIECE));
    }
    return NULL;
}

/* The chain of the hashes of a block's pieces. */
static status hash_block(const void *data, int64_t bytes, int threads, hash128 *out)
{
    pieces all = {.data = data, .bytes = bytes, .count = (bytes + PIECE - 1) / PIECE};
    pthread_t helper[THREADS_MAX];
    int helpers = 0;
    all.hash = calloc((size_t)all.count + 1, sizeof *all.hash);
    if (!all.hash)
        return FAIL(ST_NO_MEMORY, "no memory to hash a snapshot");
    while (helpers + 1 < threads && helpers < THREADS_MAX && helpers + 1 < all.count &&
           pthread_create(&helper[helpers], NULL, hash_pieces, &all) == 0)
        helpers++;
    hash_pieces(&all);
    for (int i = 0; i < helpers; i++)
        pthread_join(helper[i], NULL);
    hash128 chain = {{0}};
    for (int64_t i = 0; i < all.count; i++)
        chain = hash_chain(chain, all.hash[i]);
    free(all.hash);
    *out = chain;
    return ST_OK;
}

status snapshot_file_check(const snapshot_file *file, int side, int threads)
{
    for (int i = 0; i < file->head.blocks; i++) {
        hash128 now;
        TRY(hash_block(snapshot_file_block(file, side, i), file->head.bytes[i], threads, &now));
        if (!hash_equal(now, file->record[side].block[i]))
            return FAIL_IN(ST_BAD_INPUT, file->path,
                           "block %d of step %lld has changed since it was written: its hash "
                           "differs",
                           i, (long long)file->record[side].step);
    }
    return ST_OK;
}

static int64_t text_at(const snapshot_file *file, int side)
{
    return file->head.text + (int64_t)side * TEXT_ROOM;
}

status snapshot_file_text(const snapshot_file *file, int side, char **out)
{
    const record *of = &file->record[side];
    char *text = malloc((size_t)of->text_bytes + 1);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for the state in a snapshot");
    status st = read_at(file, text, of->text_bytes, text_at(file, side));
    text[of->text_bytes] = 0;
    if (st == ST_OK && !hash_equal(hash_bytes(text, (size_t)of->text_bytes), of->text))
        st = FAIL_IN(ST_BAD_INPUT, file->path,
                     "the state of step %lld has changed since it was written: its hash differs",
                     (long long)of->step);
    if (st != ST_OK)
        free(text);
    else
        *out = text;
    return st;
}

static status write_record(snapshot_file *file, int side, const record *to)
{
    file->record[side] = *to;
    return write_at(file, to, sizeof *to, (1 + side) * PAGE);
}

status snapshot_file_begin(snapshot_file *file, int side)
{
    record none;
    memset(&none, 0, sizeof none);
    return write_record(file, side, &none);
}

status snapshot_file_end(snapshot_file *file, int side, int64_t step, const char *text)
{
    record made;
    memset(&made, 0, sizeof made);
    made.step = step;
    made.text_bytes = (int64_t)strlen(text);
    if (made.text_bytes > TEXT_ROOM)
        return FAIL_IN(ST_IO, file->path, "the run's state takes %lld bytes, and has room for %d",
                       (long long)made.text_bytes, TEXT_ROOM);
    made.text = hash_bytes(text, (size_t)made.text_bytes);
    TRY(write_at(file, text, made.text_bytes, text_at(file, side)));
    for (int i = 0; i < file->head.blocks; i++)
        TRY(hash_block(snapshot_file_block(file, side, i), file->head.bytes[i], 1, &made.block[i]));
    made.own = record_hash(&made, &file->head);
    return write_record(file, side, &made);
}
