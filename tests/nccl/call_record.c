/* SPDX-License-Identifier: Apache-2.0 */
/* call_record.c: the implementation of call_record.h. Both sides are summed by kind of call and
 * compared. */
#include "tests/nccl/call_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sum {
    int64_t calls, bytes;
} sum;

static comm_kind kind_of(const char *word)
{
    static const char *const name[COMM_KINDS] = {[COMM_ALL_GATHER] = "ncclAllGather",
                                                 [COMM_REDUCE_SCATTER] = "ncclReduceScatter",
                                                 [COMM_ALL_REDUCE] = "ncclAllReduce",
                                                 [COMM_BROADCAST] = "ncclBroadcast",
                                                 [COMM_SEND] = "ncclSend",
                                                 [COMM_RECV] = "ncclRecv"};
    int k = 0;
    while (k < COMM_KINDS && !(name[k] && strcmp(name[k], word) == 0))
        k++;
    return (comm_kind)k;
}

static status read_record(const char *path, sum *out)
{
    char word[32], type[32];
    int size, rank, stream_number, captured_in;
    long long count, bytes;
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "the record of NCCL's calls is missing");
    while (fscanf(file, "%31s %d %d %d %lld %31s %lld %d", word, &size, &rank, &stream_number,
                  &count, type, &bytes, &captured_in) == 8) {
        comm_kind kind = kind_of(word);
        if (kind == COMM_KINDS)
            break;
        out[kind].calls++;
        out[kind].bytes += bytes;
    }
    bool whole = feof(file);
    fclose(file);
    return whole ? ST_OK : FAIL_IN(ST_BAD_INPUT, path, "a line of it is not a call");
}

/* `calls`: compare the number of calls too. The ledger counts an exchange as one call, NCCL counts
 * each of its messages. */
static status compare_sums(comm_kind kind, sum want, sum got, bool calls)
{
    if (want.bytes == got.bytes && (want.calls == got.calls || !calls))
        return ST_OK;
    return FAIL(ST_BAD_INPUT, "%s: the ledger has %lld calls, %lld bytes; NCCL %lld calls, %lld",
                comm_kind_name(kind), (long long)want.calls, (long long)want.bytes,
                (long long)got.calls, (long long)got.bytes);
}

status record_check(const comm_ledger *ledger, int rank)
{
    const char *prefix = getenv("TESSERA_NCCL_RECORD");
    char path[STATUS_PATH_MAX];
    sum want[COMM_KINDS] = {0}, got[COMM_KINDS] = {0};
    const comm_tally *list;
    if (!prefix)
        return ST_OK;
    snprintf(path, sizeof path, "%s.%d", prefix, rank);
    TRY(read_record(path, got));
    int count = comm_ledger_list(ledger, &list);
    for (int i = 0; i < count; i++) {
        comm_kind kind = list[i].kind == COMM_ALL_TO_ALL ? COMM_RECV : list[i].kind;
        want[kind].calls += list[i].calls;
        want[kind].bytes += list[i].bytes;
    }
    for (int k = 0; k < COMM_PEERS; k++) /* not COMM_PEERS: loads and stores are not NCCL's calls */
        TRY(compare_sums((comm_kind)k, want[k], got[k], k < COMM_SEND));
    return ST_OK;
}
