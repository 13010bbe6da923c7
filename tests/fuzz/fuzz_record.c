/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_record.c: any bytes as a recording. It must be refused, or give messages that can be read.
 * Each input is tried as it is, and again with the hashes of its chunks and its index corrected, so
 * that the search reaches what they protect. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/message/record.h"

enum { MAX_ROWS = 1000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const uint8_t *data, size_t size)
{
    char path[64];
    record_reader *reader = NULL;
    wire_msg *message = NULL;
    int fd = memfd_create("recording", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || wire_msg_new(&message) != ST_OK)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (record_open(path, &reader) == ST_OK)
        for (uint64_t i = 0; i < record_rows(reader) && i < MAX_ROWS; i++)
            if (record_read(reader, i, message) == ST_OK && wire_msg_parts(message) < 2)
                abort();
    record_close(&reader);
    wire_msg_free(&message);
    close(fd);
}

static void repair(uint8_t *bytes, size_t size)
{
    if (size < HEAD_BYTES + TAIL_BYTES)
        return;
    span all = span_of(bytes, size);
    uint64_t welcome = load_u64(bytes + HEAD_AT_WELCOME);
    if (!span_holds(all, HEAD_BYTES, welcome))
        return;
    hash128 digest = hash_bytes(bytes + HEAD_BYTES, welcome);
    memcpy(bytes + HEAD_AT_HASH, digest.bytes, sizeof digest.bytes);
    uint64_t at = (HEAD_BYTES + welcome + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
    uint8_t *tail = bytes + size - TAIL_BYTES;
    uint64_t index = load_u64(tail + TAIL_AT_INDEX);
    while (span_holds(all, at, CHUNK_BYTES) && at < index) {
        uint64_t count = load_u64(bytes + at + CHUNK_AT_SIZE);
        if (!span_holds(all, at + CHUNK_BYTES, count))
            break;
        digest = hash_bytes(bytes + at + CHUNK_BYTES, count);
        memcpy(bytes + at + CHUNK_AT_HASH, digest.bytes, sizeof digest.bytes);
        at = (at + CHUNK_BYTES + count + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
    }
    if (index > size - TAIL_BYTES)
        return;
    digest = hash_bytes(bytes + index, size - TAIL_BYTES - index + TAIL_AT_CHECK);
    memcpy(tail + TAIL_AT_CHECK, digest.bytes, TAIL_CHECK_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_all(data, size);
    uint8_t *copy = malloc(size + 1);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    repair(copy, size);
    read_all(copy, size);
    free(copy);
    return 0;
}
