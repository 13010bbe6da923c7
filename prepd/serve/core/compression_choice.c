/* compression_choice.c: compresses for a consumer when much of its credit is under way, and for a
 * remote worker's link when sending the bytes that compression saves would take longer than
 * compressing. */
#include "prepd/serve/core/compression_choice.h"

/* Bytes per second that one core compresses, and by how much they shrink: measured with patches of
 * COCO pictures, plane filter and entropy coding. */
static const double PRESS_RATE = 0.83e9, RATIO = 2.2;
static const double ON = 0.7, OFF = 0.3; /* shares of the credit that is under way */
static const double NEWEST = 0.3;        /* weight of the newest row in the average */

bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row)
{
    if (unreturned <= row)
        return false; /* the consumer waits for rows, so its link is not the slower part */
    double share = (double)unreturned / (double)(unreturned + (credit > 0 ? credit : 0));
    return share > ON || (was && share > OFF);
}

void compression_link_saw(compression_link *link, int64_t bytes, int64_t ns)
{
    double rate = (double)bytes / ((double)(ns > 1 ? ns : 1) * 1e-9);
    link->rate = link->rate > 0.0 ? (1.0 - NEWEST) * link->rate + NEWEST * rate : rate;
}

/* Sending what compression saves, (1 - 1 / RATIO) of each byte at the link's rate, takes longer
 * than compressing the whole byte. */
bool compress_for_link(const compression_link *link)
{
    return link->rate > 0.0 && (1.0 - 1.0 / RATIO) / link->rate > 1.0 / PRESS_RATE;
}
