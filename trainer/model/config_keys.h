/* config_keys.h: what becomes of every member of config.json that the reference reads
 * (4.57.3, 5.23).
 *
 * A member is honoured (dims.c reads it), refused unless its value is neutral, that is the one
 * which this model computes with, or has no effect on what is trained here. What the reference does
 * not read either is not in the table and is ignored. tests/golden/check_config.py tries each
 * against the reference itself; when you add a row, add it there. */
#ifndef TESSERA_TRAINER_MODEL_CONFIG_KEYS_H
#define TESSERA_TRAINER_MODEL_CONFIG_KEYS_H

#include <stdbool.h>

#include "common/json/json.h"
#include "common/base/status.h"

typedef enum config_place { IN_TOP, IN_TEXT, IN_VISION, IN_ROPE } config_place;
typedef enum config_use { KEY_HONOURED, KEY_NEUTRAL, KEY_WITHOUT_EFFECT } config_use;
enum { OF_VISION = 1, OF_TEXT_ONLY = 2, OF_BOTH = 3 }; /* models */

/* neutral: JSON scalars and empty containers that are accepted, with '|' between; a text has no
 * quotes; [full_attention]: an array of nothing else. why: what the reference does with another
 * value, or why the member has no effect. */
typedef struct config_key {
    config_place place; /* of a text-only model the text part is the top itself */
    const char *key;
    int models;
    config_use use;
    const char *neutral, *why;
} config_key;

extern const config_key config_keys[];
extern const int n_config_keys;

/* ST_BAD_INPUT by key and value of the first member that is not neutral. o: the object at place;
 * NULL: none. */
WARN_UNUSED status config_keys_check(const json_value *o, config_place place, bool vision,
                                     const char *source);

#endif
