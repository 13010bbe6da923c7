/* SPDX-License-Identifier: Apache-2.0 */
/* json_pairs.c: see json_pairs.h. It only looks for half pairs. A backslash outside of a text, and
 * anything else that is wrong with an escape, is left for yajl to refuse. */
#include "common/json/json_parser.h"

#include <string.h>

static int digit_of(unsigned char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* Called when all four digits of an escape are read. False if it, or the escape before it, is half
 * a pair. */
static bool take_escape(json_pairs *state)
{
    const bool is_high = (state->value & 0xFC00) == 0xD800,
               is_low = (state->value & 0xFC00) == 0xDC00;
    if (is_low != state->has_high)
        return false;
    state->has_high = is_high;
    state->high = state->escape;
    return true;
}

static bool take_digit(json_pairs *state, unsigned char letter)
{
    const int digit = digit_of(letter);
    /* Surrogates are D800 to DFFF, so an escape whose first digit is not D is none. */
    const bool is_other = state->digits == 0 && digit != 0xD && !state->has_high;
    if (digit < 0 || is_other) {
        state->has_high = false;
        state->at = PAIRS_TEXT;
        return true;
    }
    state->value = state->value << 4 | (unsigned)digit;
    if (++state->digits < 4)
        return true;
    state->at = PAIRS_TEXT;
    return take_escape(state);
}

int64_t json_pairs_find(json_pairs *state, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        switch (state->at) {
        case PAIRS_TEXT:
            if (state->has_high && bytes[i] != '\\')
                return state->high;
            const unsigned char *next = memchr(bytes + i, '\\', size - i);
            i = next ? (size_t)(next - bytes) : size;
            state->escape = state->seen + (int64_t)i;
            state->at = next ? PAIRS_ESCAPE : PAIRS_TEXT;
            break;
        case PAIRS_ESCAPE:
            if (bytes[i] != 'u' && state->has_high)
                return state->high;
            state->at = bytes[i] == 'u' ? PAIRS_DIGITS : PAIRS_TEXT;
            state->digits = 0;
            state->value = 0;
            break;
        case PAIRS_DIGITS:
            if (!take_digit(state, bytes[i]))
                return state->has_high ? state->high : state->escape;
        }
    }
    state->seen += (int64_t)size;
    return -1;
}
