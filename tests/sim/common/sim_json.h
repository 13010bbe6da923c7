/* SPDX-License-Identifier: Apache-2.0 */
/* sim_json.h: reads JSON as the writer of common/json writes it, faster than yajl reads all JSON.
 * The far ends of a simulated world read with it what a core says: that is most of what is read
 * there, and no part of what is tested. The cores themselves read with json_parse.
 *
 * It knows no blanks, no bytes above 0x7E, no \u, no integers of more than 18 digits. A text that
 * has any of these, or is no JSON, is left to json_parse, which reads or refuses it. What it does
 * read it reads alike (test_sim_json.c). */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_JSON_H
#define TESSERA_TESTS_SIM_COMMON_SIM_JSON_H

#include <stdbool.h>

#include "common/json/json_tree.h"

/* What a reader keeps between two texts. An unused one is all zeros. */
typedef struct sim_json {
    json_builder build;
    char *unescaped; /* [room] a text without its escapes */
    size_t room;
} sim_json;

/* Reads a text into values that live in `memory`, which is reset at first. False: this is not for
 * it. Ends the process if there is no memory. */
bool sim_json_read(sim_json *reader, const char *text, size_t size, arena *memory, json_value *out);
void sim_json_done(sim_json *reader);

#endif
