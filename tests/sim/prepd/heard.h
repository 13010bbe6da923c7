/* heard.h: what simulated peers hear from the core. The same text reaches many of them: TERMS come
 * every second, and a row that is made a second time is leased in the same words. Each text is
 * parsed once, by the reader of the real programs, and shared by all who hear it. */
#ifndef TESSERA_TESTS_SIM_PREPD_HEARD_H
#define TESSERA_TESTS_SIM_PREPD_HEARD_H

#include "common/json/json.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct heard {
    hash128 digest; /* of the text */
    size_t size;
    json_value *said; /* owned */
    int users;
} heard;

/* The texts that were heard last. An empty one is all zeros. */
enum { HEARD_PLACES = 64 };
typedef struct heard_book {
    heard *of[HEARD_PLACES];
} heard_book;

/* Reads a message of JSON as wire_read_json does, and fails as it does. Whoever gets a text drops
 * it. Ends the process if there is no memory. */
WARN_UNUSED status heard_read(heard_book *book, const wire_msg *message, frame *out_head,
                              heard **out);
void heard_drop(heard **text); /* accepts NULL; clears the pointer */
void heard_book_done(heard_book *book);

#endif
