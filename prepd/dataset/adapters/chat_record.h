/* SPDX-License-Identifier: Apache-2.0 */
/* chat_record.h: turns one record of a conversation file into turns and the names of its images and
 * videos. Reads no file. A record has one of these forms:
 *
 *   LLaVA, ShareGPT  {"id", "image": NAME or [NAME...], "conversations": [{"from", "value"}...]}
 *   messages         {"messages": [{"role", "content": TEXT or [PART...]}...], "images": [NAME...]}
 *   a question       {"image" or "img_id", "question", "answer"}, as in Kvasir-VQA
 *
 * A PART is {"type": "text", "text"}, {"type": "image", "image": NAME} or {"image_url": {"url":
 * NAME}}. One without a name shows the next of "images".
 *
 * "video", "videos", {"type": "video", "video": NAME} and <video> do the same for videos. A folder
 * of frames has "fps" (or "sample_fps") beside its name, or beside the list of names.
 *
 * A member that is null counts as absent. The "type" of a part says what it is; if it has none, its
 * members do.
 *
 * The roles are system; user or human; assistant or gpt. In a user's text, <image> stands for the
 * next image, and there must be as many marks as images. A text part or a message may carry
 * "weight", the weight of an assistant's text in the loss. An assistant may answer in stages, as an
 * array of text parts or in several turns; data.stage_weights gives the weights of the sample's
 * first, second, ... stage. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_CHAT_RECORD_H
#define TESSERA_PREPD_DATASET_ADAPTERS_CHAT_RECORD_H

#include "common/json/json.h"
#include "prepd/dataset/dataset.h"

enum { MAX_STAGES = 64 };

/* How records are read: the options, and what is known of the images from elsewhere. */
typedef struct chat_rules {
    bool last_only; /* only the last assistant turn counts in the loss */
    bool trim;      /* drop white space around <image> and at the ends of a user's text */
    float stage_weight[MAX_STAGES]; /* [n_stages]; later stages have the last one's */
    int n_stages;                   /* 0: every weight is 1 */
    bool outside;              /* the images lie beside the record, and names in it are ignored */
    int32_t n_outside;         /* how many there are; they are shown in their order */
    const bool *outside_video; /* [n_outside] which of them are videos; borrowed */
} chat_rules;

/* Reads data.loss_on, data.trim and data.stage_weights; `outside` is false. ST_CONFIG if the
 * weights cannot be read. */
WARN_UNUSED status chat_rules_of(const conf *options, chat_rules *out);

typedef struct chat_item {
    const char *name; /* as written in the record */
    bool video;
    double fps; /* the rate beside a video's name, in frames a second; 0: none */
} chat_item;

typedef struct chat_record {
    const char *id; /* "" if it has none */
    turn *turns;    /* [n_turns] */
    int32_t n_turns;
    chat_item *images; /* [n_images] in the order in which they are shown; NULL with `outside` */
    int32_t n_images;
} chat_record;

/* Whether a value has the members of one of these forms. Whether they are right is for
 * chat_record_read to say. */
bool chat_record_is(const json_value *value);

/* Reads a record; all of the result lives in `memory`. ST_BAD_INPUT says what is wrong with it and
 * begins with `source`, such as "a.jsonl:7". */
WARN_UNUSED status chat_record_read(const json_value *value, const chat_rules *rules,
                                    const char *source, arena *memory, chat_record *out);

#endif
