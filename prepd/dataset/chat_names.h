/* chat_names.h: the images and videos that a record names, collected before it is known where its
 * texts show them. Internal to chat_record.c. */
#ifndef TESSERA_PREPD_DATASET_CHAT_NAMES_H
#define TESSERA_PREPD_DATASET_CHAT_NAMES_H

#include "prepd/dataset/chat_record.h"

typedef enum chat_kind { CHAT_IMAGE, CHAT_VIDEO, CHAT_KINDS } chat_kind;

/* "image" and "video": the keys of records, the types of parts and, inside < >,
 * the marks in texts. */
extern const char *const chat_words[CHAT_KINDS];

typedef struct chat_names {
    chat_item *items; /* [count] in the arena */
    int32_t count, capacity;
} chat_names;

/* Adds one name, given as a text or as {"path": text}. `owner` is the object in which a video's
 * rate may stand. ST_BAD_INPUT, with `source` before it, for a name that is empty or is not a
 * file's, for a wrong rate, and for too many names. */
WARN_UNUSED status chat_names_add(chat_names *list, chat_kind kind, const json_value *name,
                                  const json_value *owner, const char *source, arena *memory);

/* Adds what the record lists beside its messages, under "image" and "images" or under "video" and
 * "videos": a name, or an array of names. */
WARN_UNUSED status chat_names_list(chat_names *list, chat_kind kind, const json_value *record,
                                   const char *source, arena *memory);

/* Adds a copy of an item. */
WARN_UNUSED status chat_names_put(chat_names *list, chat_item item, const char *source,
                                  arena *memory);

#endif
