/* replies.c: see replies.h. */
#include "trainer/generate/replies.h"

int64_t replies_of_row(const row *r, reply *out)
{
    int64_t n = 0;
    for (int64_t doc = 0; doc < r->n_docs; doc++) {
        const int64_t end = r->cu_seqlens[doc + 1];
        for (int64_t t = r->cu_seqlens[doc]; t < end; t++) {
            const int64_t begin = t;
            while (t < end && r->labels[t] != NO_LABEL)
                t++;
            if (t == begin)
                continue;
            if (out)
                out[n] = (reply){.doc = doc, .begin = begin, .end = t};
            n++;
        }
    }
    return n;
}
