/* json_pairs.c: see json_pairs.h. It only looks for half pairs. A backslash outside of a text, and
 * anything else that is wrong with an escape, is left for yajl to refuse. */
#include "common/json/json_pairs.h"

#include <string.h>

static int digit_of(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Called when all four digits of an escape are read. False if it, or the escape before it, is half
 * a pair. */
static bool take_escape(json_pairs *p)
{
    const bool is_high = (p->value & 0xFC00) == 0xD800, is_low = (p->value & 0xFC00) == 0xDC00;
    if (is_low != p->has_high)
        return false;
    p->has_high = is_high;
    p->high = p->escape;
    return true;
}

static bool take_digit(json_pairs *p, unsigned char c)
{
    const int digit = digit_of(c);
    /* Surrogates are D800 to DFFF, so an escape whose first digit is not D is none. */
    const bool is_other = p->digits == 0 && digit != 0xD && !p->has_high;
    if (digit < 0 || is_other) {
        p->has_high = false;
        p->at = PAIRS_TEXT;
        return true;
    }
    p->value = p->value << 4 | (unsigned)digit;
    if (++p->digits < 4)
        return true;
    p->at = PAIRS_TEXT;
    return take_escape(p);
}

int64_t json_pairs_find(json_pairs *p, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        switch (p->at) {
        case PAIRS_TEXT:
            if (p->has_high && bytes[i] != '\\')
                return p->high;
            const unsigned char *next = memchr(bytes + i, '\\', size - i);
            i = next ? (size_t)(next - bytes) : size;
            p->escape = p->seen + (int64_t)i;
            p->at = next ? PAIRS_ESCAPE : PAIRS_TEXT;
            break;
        case PAIRS_ESCAPE:
            if (bytes[i] != 'u' && p->has_high)
                return p->high;
            p->at = bytes[i] == 'u' ? PAIRS_DIGITS : PAIRS_TEXT;
            p->digits = 0;
            p->value = 0;
            break;
        case PAIRS_DIGITS:
            if (!take_digit(p, bytes[i]))
                return p->has_high ? p->high : p->escape;
        }
    }
    p->seen += (int64_t)size;
    return -1;
}
