/* SPDX-License-Identifier: Apache-2.0 */
/* config_json.h: a table of every member of config.json that transformers reads (4.57.3 and 5.23),
 * and what becomes of it here.
 *
 * A member is honoured, which means that dims.c reads it; or it is refused unless its value is
 * neutral, which means the value that this model computes with; or it has no effect on what is
 * trained here. A member that transformers does not read is not in the table and is ignored.
 * tests/golden/check_config.py tries each member against transformers itself. When you add a row
 * here, add it there. */
#ifndef TESSERA_TRAINER_MODEL_DIMS_CONFIG_JSON_H
#define TESSERA_TRAINER_MODEL_DIMS_CONFIG_JSON_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/json/json.h"

typedef enum config_place { IN_TOP, IN_TEXT, IN_VISION, IN_ROPE } config_place;
typedef enum config_use { KEY_HONOURED, KEY_NEUTRAL, KEY_WITHOUT_EFFECT } config_use;
enum { OF_VISION = 1, OF_TEXT_ONLY = 2, OF_BOTH = 3 }; /* kinds of models, as bits */

/* neutral lists the accepted values with '|' between them: JSON scalars (a text without quotes),
 * empty containers, and [full_attention] for an array that holds nothing else. why says what
 * transformers does with another value, or why the member has no effect. */
typedef struct config_key {
    config_place place; /* in a text-only model the members of IN_TEXT are at the top */
    const char *key;
    int models;
    config_use use;
    const char *neutral, *why;
} config_key;

extern const config_key config_keys[];
extern const int n_config_keys;

/* Checks the members of `object`, the object at `place`, or NULL if there is none. vision: the
 * model has a vision tower. ST_BAD_INPUT for the first value that is not neutral, with its key;
 * source names the file in the message. */
WARN_UNUSED status config_keys_check(const json_value *object, config_place place, bool vision,
                                     const char *source);

#endif
