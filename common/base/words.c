/* words.c: see words.h. */
#include "common/base/words.h"

#include <stdarg.h>
#include <stdio.h>

size_t words_add(char *out, size_t size, size_t used, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const int length = vsnprintf(out + used, size - used, format, values);
    va_end(values);
    if (length < 0) {
        out[used] = 0;
        return used;
    }
    return (size_t)length < size - used ? used + (size_t)length : size - 1;
}
