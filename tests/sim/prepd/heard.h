/* SPDX-License-Identifier: Apache-2.0 */
/* heard.h: what simulated peers hear from the core. The same text reaches many of them: TERMS come
 * every second, and a row that is made a second time is leased in the same words. Each text is read
 * once and shared by all who hear it. */
#ifndef TESSERA_TESTS_SIM_PREPD_HEARD_H
#define TESSERA_TESTS_SIM_PREPD_HEARD_H

#include "proto/row/frame.h"
#include "proto/wire/wire.h"
#include "tests/sim/common/sim_json.h"

typedef struct heard {
    const json_value *said; /* the JSON */
    hash128 digest;         /* of the text */
    size_t size;
    int users;
    json_value root; /* with what lies in `memory`, if sim_json has read it */
    arena memory;
    json_value *parsed; /* owned; if json_parse has */
} heard;

/* The texts that were heard last. An empty book is all zeros. */
enum { HEARD_PLACES = 64 };
typedef struct heard_book {
    heard *of[HEARD_PLACES];
    sim_json reader;
} heard_book;

/* Reads a message of JSON as wire_read_json does, and fails as it does. Whoever gets a text drops
 * it. Ends the process if there is no memory. */
WARN_UNUSED status heard_read(heard_book *book, const wire_msg *message, frame *out_head,
                              heard **out);
void heard_drop(heard **text); /* accepts NULL; clears the pointer */
/* All who heard something have dropped it. */
void heard_book_done(heard_book *book);

#endif
