/* memory_text.c: see memory_text.h. */
#include "trainer/plan/memory_text.h"

#include <stdio.h>

static const double GIB = 1073741824.0, MIB = 1048576.0;

const char *memory_bytes_text(int64_t bytes, char out[MEMORY_BYTES_TEXT])
{
    const double real = (double)bytes;
    if (real < MIB)
        snprintf(out, MEMORY_BYTES_TEXT, "%.1f KiB", real / 1024.0);
    else
        snprintf(out, MEMORY_BYTES_TEXT, "%.1f %s", real < GIB ? real / MIB : real / GIB,
                 real < GIB ? "MiB" : "GiB");
    return out;
}
