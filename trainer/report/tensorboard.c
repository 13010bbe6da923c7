/* tensorboard.c: builds protobuf messages by hand and writes them as TFRecords; the format is in
 * the header. */
#include "trainer/report/tensorboard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/span.h"

enum { EVENT_BYTES = 8192, TAG_MAX = 64, SCALARS_MAX = 64, HEAD_BYTES = 12, TAIL_BYTES = 4 };
/* Keys of protobuf fields: the field's number shifted left by three bits, or-ed with the wire type
 * (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
};
static const uint32_t CRC_POLYNOMIAL = 0x82f63b78; /* Castagnoli, reflected */
static const uint32_t MASK_DELTA = 0xa282ead8;

struct tensorboard {
    FILE *file;
    uint32_t crc_table[256];
    char path[STATUS_PATH_MAX];
};

typedef struct message {
    uint8_t data[EVENT_BYTES];
    size_t size;
} message;

static void put_byte(message *m, uint8_t b)
{
    if (m->size < sizeof m->data)
        m->data[m->size++] = b;
}

static void put_varint(message *m, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        put_byte(m, (uint8_t)(v | 0x80));
    put_byte(m, (uint8_t)v);
}

static void put_bytes(message *m, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        put_byte(m, ((const uint8_t *)data)[i]);
}

static void put_block(message *m, int field, const void *data, size_t size)
{
    put_varint(m, (uint64_t)field);
    put_varint(m, size);
    put_bytes(m, data, size);
}

static void put_double(message *m, int field, double v)
{
    uint64_t bits;
    uint8_t bytes[8];
    memcpy(&bits, &v, sizeof bits);
    store_u64(bytes, bits);
    put_varint(m, (uint64_t)field);
    put_bytes(m, bytes, sizeof bytes);
}

static void put_float(message *m, int field, double value)
{
    float v = (float)value;
    uint32_t bits;
    uint8_t bytes[4];
    memcpy(&bits, &v, sizeof bits);
    store_u32(bytes, bits);
    put_varint(m, (uint64_t)field);
    put_bytes(m, bytes, sizeof bytes);
}

static void make_crc_table(tensorboard *t)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? c >> 1 ^ CRC_POLYNOMIAL : c >> 1;
        t->crc_table[i] = c;
    }
}

static uint32_t masked_crc(const tensorboard *t, const uint8_t *data, size_t size)
{
    uint32_t c = UINT32_MAX;
    for (size_t i = 0; i < size; i++)
        c = t->crc_table[(c ^ data[i]) & 0xff] ^ c >> 8;
    c = ~c;
    return (c >> 15 | c << 17) + MASK_DELTA;
}

static status write_record(tensorboard *t, const message *m)
{
    uint8_t head[HEAD_BYTES], tail[TAIL_BYTES];
    store_u64(head, m->size);
    store_u32(head + 8, masked_crc(t, head, 8));
    store_u32(tail, masked_crc(t, m->data, m->size));
    if (fwrite(head, 1, sizeof head, t->file) != sizeof head ||
        fwrite(m->data, 1, m->size, t->file) != m->size ||
        fwrite(tail, 1, sizeof tail, t->file) != sizeof tail || fflush(t->file) != 0)
        return FAIL_IN(ST_IO, t->path, "write failed: %s", strerror(errno));
    return ST_OK;
}

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static status write_version(tensorboard *t)
{
    static const char version[] = "brain.Event:2";
    message m = {.size = 0};
    put_double(&m, EVENT_WALL_TIME, wall_time());
    put_block(&m, EVENT_VERSION, version, sizeof version - 1);
    return write_record(t, &m);
}

status tensorboard_open(const char *folder, tensorboard **out)
{
    char host[64] = "localhost";
    tensorboard *t = calloc(1, sizeof *t);
    if (!t)
        return FAIL(ST_NO_MEMORY, "no memory for TensorBoard's event file");
    make_crc_table(t);
    gethostname(host, sizeof host - 1);
    snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%010lld.%s.%d", folder,
             (long long)wall_time(), host, (int)getpid());
    status st = ST_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        st = FAIL_IN(ST_CANT_CREATE, folder, "%s", strerror(errno));
    else if (!(t->file = fopen(t->path, "wbe")))
        st = FAIL_IN(ST_CANT_CREATE, t->path, "%s", strerror(errno));
    else
        st = write_version(t);
    if (st != ST_OK) {
        tensorboard_close(&t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void tensorboard_close(tensorboard **held)
{
    tensorboard *t = *held;
    if (!t)
        return;
    if (t->file)
        fclose(t->file);
    free(t);
    *held = NULL;
}

status tensorboard_add(tensorboard *t, int64_t step, const scalar *list, int n)
{
    message event = {.size = 0}, summary = {.size = 0};
    if (n > SCALARS_MAX)
        return FAIL(ST_INTERNAL, "an event with %d scalars does not fit", n);
    for (int i = 0; i < n; i++) {
        message value = {.size = 0};
        put_block(&value, VALUE_TAG, list[i].tag, strnlen(list[i].tag, TAG_MAX));
        put_float(&value, VALUE_SIMPLE, list[i].value);
        put_block(&summary, SUMMARY_VALUE, value.data, value.size);
    }
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_varint(&event, EVENT_STEP);
    put_varint(&event, (uint64_t)step);
    put_block(&event, EVENT_SUMMARY, summary.data, summary.size);
    return write_record(t, &event);
}
