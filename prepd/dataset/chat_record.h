/* chat_record.h: one record of a conversation file -> turns, names of images and videos. Pure.
 *
 *   LLaVA, ShareGPT  {"id", "image": NAME or [NAME...], "conversations": [{"from", "value"}...]}
 *   messages         {"messages": [{"role", "content": TEXT or [PART...]}...], "images": [NAME...]}
 *                    a part: {"type": "text", "text"}, {"type": "image", "image": NAME} (the name
 *                    may be missing: the next of "images"), {"image_url": {"url": NAME}}
 *   a question       {"image" or "img_id", "question", "answer"}: as Kvasir-VQA's rows
 *
 * "video", "videos", {"type": "video", "video": NAME} and <video> are the same for videos; a folder
 * of frames has "fps" (or "sample_fps") beside its name, or beside the list.
 *
 * A member that is null is as one that is not there; a part's "type" says what it is, else its
 * members do.
 *
 * Roles: system; user, human; assistant, gpt. In a text of a user, <image> stands for the next
 * image; there must be as many of them as images. A text part or a message may carry "weight", of
 * the loss on an assistant's text; an assistant's answer in stages is a list of text parts, or
 * several turns: data.stage_weights gives the weight of the sample's first, second, ... of them. */
#ifndef TESSERA_PREPD_DATASET_CHAT_RECORD_H
#define TESSERA_PREPD_DATASET_CHAT_RECORD_H

#include "common/json/json.h"
#include "prepd/dataset/dataset.h"

enum { MAX_STAGES = 64 };

typedef struct chat_rules {
    bool last_only; /* loss on the last assistant turn alone */
    bool trim;      /* white space around <image> and at the ends of a user's text goes */
    float stage_weight[MAX_STAGES]; /* later stages have the last one's */
    int n_stages;                   /* 0: all 1 */
    bool outside;                   /* the images lie beside the record: names in it are not used */
    int32_t n_outside;              /* how many; shown in their order */
    const bool *outside_video;      /* [n_outside] which are videos */
} chat_rules;

WARN_UNUSED status chat_rules_of(const conf *c, chat_rules *out);

typedef struct chat_item {
    const char *name; /* as written */
    bool video;
    double fps; /* that stands beside a video's name; 0: none */
} chat_item;

typedef struct chat_record {
    const char *id; /* "" if it has none */
    turn *turns;
    int32_t n_turns;
    chat_item *images; /* [n_images] in the order they are shown; NULL: outside */
    int32_t n_images;
} chat_record;

/* True if it has the members of one of these kinds; whether they are as they should be,
 * chat_record_read tells. */
bool chat_record_is(const json_value *v);

/* All of it in the arena. ST_BAD_INPUT: what is wrong; source ("a.jsonl:7") is put before it. */
WARN_UNUSED status chat_record_read(const json_value *v, const chat_rules *rules,
                                    const char *source, arena *a, chat_record *out);

#endif
