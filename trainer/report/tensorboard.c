/* SPDX-License-Identifier: Apache-2.0 */
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

static void put_byte(message *fields, uint8_t byte)
{
    if (fields->size < sizeof fields->data)
        fields->data[fields->size++] = byte;
}

static void put_varint(message *fields, uint64_t field)
{
    for (; field >= 0x80; field >>= 7)
        put_byte(fields, (uint8_t)(field | 0x80));
    put_byte(fields, (uint8_t)field);
}

static void put_bytes(message *fields, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        put_byte(fields, ((const uint8_t *)data)[i]);
}

static void put_block(message *fields, int field, const void *data, size_t size)
{
    put_varint(fields, (uint64_t)field);
    put_varint(fields, size);
    put_bytes(fields, data, size);
}

static void put_double(message *fields, int field, double value)
{
    uint64_t bits;
    uint8_t bytes[8];
    memcpy(&bits, &value, sizeof bits);
    store_u64(bytes, bits);
    put_varint(fields, (uint64_t)field);
    put_bytes(fields, bytes, sizeof bytes);
}

static void put_float(message *fields, int field, double value)
{
    float number = (float)value;
    uint32_t bits;
    uint8_t bytes[4];
    memcpy(&bits, &number, sizeof bits);
    store_u32(bytes, bits);
    put_varint(fields, (uint64_t)field);
    put_bytes(fields, bytes, sizeof bytes);
}

static void make_crc_table(tensorboard *board)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ CRC_POLYNOMIAL : crc >> 1;
        board->crc_table[i] = crc;
    }
}

static uint32_t masked_crc(const tensorboard *board, const uint8_t *data, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size; i++)
        crc = board->crc_table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    crc = ~crc;
    return (crc >> 15 | crc << 17) + MASK_DELTA;
}

static status write_record(tensorboard *board, const message *fields)
{
    uint8_t head[HEAD_BYTES], tail[TAIL_BYTES];
    store_u64(head, fields->size);
    store_u32(head + 8, masked_crc(board, head, 8));
    store_u32(tail, masked_crc(board, fields->data, fields->size));
    if (fwrite(head, 1, sizeof head, board->file) != sizeof head ||
        fwrite(fields->data, 1, fields->size, board->file) != fields->size ||
        fwrite(tail, 1, sizeof tail, board->file) != sizeof tail || fflush(board->file) != 0)
        return FAIL_IN(ST_IO, board->path, "write failed: %s", strerror(errno));
    return ST_OK;
}

static double wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static status write_version(tensorboard *board)
{
    static const char version[] = "brain.Event:2";
    message fields = {.size = 0};
    put_double(&fields, EVENT_WALL_TIME, wall_time());
    put_block(&fields, EVENT_VERSION, version, sizeof version - 1);
    return write_record(board, &fields);
}

status tensorboard_open(const char *folder, tensorboard **out)
{
    char host[64] = "localhost";
    tensorboard *board = calloc(1, sizeof *board);
    if (!board)
        return FAIL(ST_NO_MEMORY, "no memory for TensorBoard's event file");
    make_crc_table(board);
    gethostname(host, sizeof host - 1);
    snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%010lld.%s.%d", folder,
             (long long)wall_time(), host, (int)getpid());
    status st = ST_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        st = FAIL_IN(ST_CANT_CREATE, folder, "%s", strerror(errno));
    else if (!(board->file = fopen(board->path, "wbe")))
        st = FAIL_IN(ST_CANT_CREATE, board->path, "%s", strerror(errno));
    else
        st = write_version(board);
    if (st != ST_OK) {
        tensorboard_close(&board);
        return st;
    }
    *out = board;
    return ST_OK;
}

void tensorboard_close(tensorboard **held)
{
    tensorboard *board = *held;
    if (!board)
        return;
    if (board->file)
        fclose(board->file);
    free(board);
    *held = NULL;
}

status tensorboard_add(tensorboard *board, int64_t step, const scalar *list, int count)
{
    message event = {.size = 0}, summary = {.size = 0};
    if (count > SCALARS_MAX)
        return FAIL(ST_INTERNAL, "an event with %d scalars does not fit", count);
    for (int i = 0; i < count; i++) {
        message value = {.size = 0};
        put_block(&value, VALUE_TAG, list[i].tag, strnlen(list[i].tag, TAG_MAX));
        put_float(&value, VALUE_SIMPLE, list[i].value);
        put_block(&summary, SUMMARY_VALUE, value.data, value.size);
    }
    put_double(&event, EVENT_WALL_TIME, wall_time());
    put_varint(&event, EVENT_STEP);
    put_varint(&event, (uint64_t)step);
    put_block(&event, EVENT_SUMMARY, summary.data, summary.size);
    return write_record(board, &event);
}
