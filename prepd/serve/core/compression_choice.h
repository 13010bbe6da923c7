/* compression_choice.h: whether the images of the next row are to be filtered and compressed, if
 * the options say auto. Pure rules: no sockets, no clock. The choice never enters the stream, since
 * a receiver takes either form.
 *
 * Compressing costs a worker's core time and roughly halves what is sent. Time is lost if the
 * workers are the slower part, and gained if a link is. Two links may be the slower part: the one
 * to the consumer, which shows in how much of the credit is under way; and the one to a remote
 * worker, which shows in how long its rows take to arrive. On ipc there is no link, only memory. */
#ifndef TESSERA_PREPD_SERVE_CORE_COMPRESSION_CHOICE_H
#define TESSERA_PREPD_SERVE_CORE_COMPRESSION_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* The choice for a consumer that is not on ipc. was: the choice before. unreturned: bytes sent and
 * not given back. credit: bytes that may still be reserved. row: bytes of a row. Between the two
 * thresholds the choice stays as it was. */
bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row);

/* What is known of the link to a remote worker. It starts as zeros. */
typedef struct compression_link {
    double rate; /* bytes per second, averaged over rows; 0: nothing is known yet */
} compression_link;
/* Notes that a row of this many bytes arrived `ns` later than the time that making it took. */
void compression_link_saw(compression_link *link, int64_t bytes, int64_t ns);
bool compress_for_link(const compression_link *link);

#endif
