/* json_scan.c: see json_scan.h. */
#include "common/json/json_scan.h"

#include <string.h>

size_t json_scan_text(json_scan *state, const unsigned char *bytes, size_t size)
{
    size_t at = 0;
    while (state->in_text && at < size) {
        const unsigned char letter = bytes[at++];
        if (state->escaped)
            state->escaped = false;
        else if (letter == '\\')
            state->escaped = true;
        else if (letter == '"')
            state->in_text = false;
    }
    return at;
}

static bool is_between(unsigned char letter)
{
    return letter == 0 || strchr(" \t\r\n,:[]{}", letter) != NULL;
}

/* Reads one byte outside of texts. */
static void take_outside(json_scan *state, unsigned char letter)
{
    state->in_text = letter == '"';
    state->bare = state->in_text || is_between(letter) ? 0 : state->bare + 1;
}

size_t json_scan_close(json_scan *state, int64_t *depth, const unsigned char *bytes, size_t size)
{
    size_t at = json_scan_text(state, bytes, size);
    while (*depth > 0 && at < size) {
        const unsigned char letter = bytes[at++];
        *depth += (letter == '{' || letter == '[') - (letter == '}' || letter == ']');
        take_outside(state, letter);
        at += json_scan_text(state, bytes + at, size - at);
    }
    return at;
}

int64_t json_scan_all(json_scan *state, const unsigned char *bytes, size_t size)
{
    int64_t began = -1;
    for (size_t at = json_scan_text(state, bytes, size); at < size;) {
        take_outside(state, bytes[at]);
        if (state->in_text)
            began = (int64_t)at;
        at++;
        at += json_scan_text(state, bytes + at, size - at);
    }
    return state->in_text ? began : -1;
}
