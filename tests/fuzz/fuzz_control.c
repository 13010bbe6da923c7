/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_control.c: any bytes from another rank, as a header and a greeting. They must be refused, or
 * be the same bytes when they are written again; the comparison of options must not read outside of
 * them. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "trainer/parallel/core/rank_link_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rank_link_kind kind;
    rank_link_hello hello;
    size_t bytes, again_size;
    uint8_t header[CONTROL_HEADER], *again = NULL;
    char difference[256];
    if (size < CONTROL_HEADER || rank_link_header_get(data, &kind, &bytes) != ST_OK)
        return 0;
    rank_link_header_put(header, kind, bytes);
    FUZZ_HOLDS(memcmp(header, data, CONTROL_HEADER) == 0 && bytes <= CONTROL_HELLO_MAX);
    span payload = span_of(data + CONTROL_HEADER, size - CONTROL_HEADER);
    if (rank_link_hello_get(payload, &hello) != ST_OK)
        return 0;
    FUZZ_HOLDS(rank_link_hello_put(&hello, &again, &again_size) == ST_OK);
    FUZZ_HOLDS(again_size == payload.size && memcmp(again, payload.data, again_size) == 0);
    FUZZ_HOLDS(
        !rank_link_options_differ(hello.options, hello.options, difference, sizeof difference));
    rank_link_options_differ(hello.options, hello.host, difference, sizeof difference);
    free(again);
    return 0;
}
