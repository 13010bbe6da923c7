/* chat_names.h: the images and videos a record names, before it is known where they are shown. For
 * chat_record.c. */
#ifndef TESSERA_PREPD_DATASET_CHAT_NAMES_H
#define TESSERA_PREPD_DATASET_CHAT_NAMES_H

#include "prepd/dataset/chat_record.h"

typedef enum chat_kind { CHAT_IMAGE, CHAT_VIDEO, CHAT_KINDS } chat_kind;

/* "image", "video": keys, types of parts, and inside < > the marks in texts. */
extern const char *const chat_words[CHAT_KINDS];

typedef struct chat_names {
    chat_item *items; /* [n] in the arena */
    int32_t n, capacity;
} chat_names;

/* One more: a text or {"path": text}. owner: the object that may hold a video's rate. */
WARN_UNUSED status chat_names_add(chat_names *l, chat_kind kind, const json_value *name,
                                  const json_value *owner, const char *source, arena *a);

/* What the record lists beside its messages: "image" and "images", or "video" and "videos": a name
 * or a list. */
WARN_UNUSED status chat_names_list(chat_names *l, chat_kind kind, const json_value *record,
                                   const char *source, arena *a);

/* A copy of an item at the end. */
WARN_UNUSED status chat_names_put(chat_names *l, chat_item item, const char *source, arena *a);

#endif
