#include "prepd/serve/compression_choice.h"

/* Measured on one core: COCO patches, plane filter and entropy coding. */
static const double PRESS_RATE = 0.83e9, RATIO = 2.2;
static const double ON = 0.7, OFF = 0.3; /* of the grant that is under way */
static const double NEWEST = 0.3;        /* weight of the last row */

bool compress_for_consumer(bool was, int64_t unreturned, int64_t credit, int64_t row)
{
    if (unreturned <= row)
        return false; /* it waits for rows */
    double share = (double)unreturned / (double)(unreturned + (credit > 0 ? credit : 0));
    return share > ON || (was && share > OFF);
}

void compression_link_saw(compression_link *l, int64_t bytes, int64_t ns)
{
    double rate = (double)bytes / ((double)(ns > 1 ? ns : 1) * 1e-9);
    l->rate = l->rate > 0.0 ? (1.0 - NEWEST) * l->rate + NEWEST * rate : rate;
}

/* What is no longer sent takes longer to send than all of it to compress. */
bool compress_for_link(const compression_link *l)
{
    return l->rate > 0.0 && (1.0 - 1.0 / RATIO) / l->rate > 1.0 / PRESS_RATE;
}
