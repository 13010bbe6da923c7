/* replies.c: see replies.h. */
#include "trainer/generate/replies.h"

int64_t replies_of_row(const row *packed, reply *out)
{
    int64_t count = 0;
    for (int64_t doc = 0; doc < packed->n_docs; doc++) {
        const int64_t end = packed->cu_seqlens[doc + 1];
        for (int64_t i = packed->cu_seqlens[doc]; i < end; i++) {
            const int64_t begin = i;
            while (i < end && packed->labels[i] != NO_LABEL)
                i++;
            if (i == begin)
                continue;
            if (out)
                out[count] = (reply){.doc = doc, .begin = begin, .end = i};
            count++;
        }
    }
    return count;
}
