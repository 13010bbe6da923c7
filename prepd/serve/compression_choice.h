/* compression_choice.h: whether the images of the next row are to be filtered and compressed, where
 * the options say auto: pure rules, no sockets, no clock. It never enters the stream: any receiver
 * takes either.
 *
 * A worker's core compresses about 0.8 GB/s to less than half (shared facts, section 7). That is
 * time lost where workers are the slower part, and time won where a link is. Two links may be: to
 * the consumer, seen by the credit that is under way; and to a worker elsewhere, seen by how long
 * its rows take to arrive. On ipc there is no link, only memory. */
#ifndef TESSERA_PREPD_SERVE_COMPRESSION_CHOICE_H
#define TESSERA_PREPD_SERVE_COMPRESSION_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* Of a consumer beyond ipc. was: the choice before. unreturned: bytes sent and not given back;
 * credit: bytes that may still be reserved; row: bytes of a row. Between the two thresholds it
 * stays as it was. */
bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row);

/* Bytes per second of a link, of rows that took ns longer than making them. 0: nothing known. */
typedef struct compression_link {
    double rate;
} compression_link;
void compression_link_saw(compression_link *l, int64_t bytes, int64_t ns);
bool compress_for_link(const compression_link *l);

#endif
