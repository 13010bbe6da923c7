/* chat_template.h: whether a model's own chat template gives the text that prepd writes.
 *
 * text.c writes conversations as the template of Qwen3-VL Instruct does, without a template engine.
 * A folder may bring another template (a Thinking model's puts <think> into answers, a fine-tuned
 * model's may do anything), and then the model would be trained on a text in which it is
 * never asked. So the template is found as the reference finds it and must be one of those that are
 * known, by the hash of its text, to give the same. */
#ifndef TESSERA_PREPD_SAMPLE_CHAT_TEMPLATE_H
#define TESSERA_PREPD_SAMPLE_CHAT_TEMPLATE_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "common/base/status.h"

typedef struct chat_template {
    char path[STATUS_PATH_MAX]; /* of the file it stands in; "" where the folder has none */
    hash128 digest;             /* XXH3-128 of its text without the last newline, which is never
                                 * part of what a template gives */
    const char *releases;       /* whose it is; NULL: not known */
    bool thinks;                /* it names <think> */
} chat_template;

/* Finds the template that the reference takes from model.tokenizer or else model.path. With
 * pictures (the folder has preprocessor_config.json) that is its processor: chat_template.json,
 * else chat_template.jinja. Without them, or where neither is there, its tokenizer:
 * chat_template.jinja, else chat_template in tokenizer_config.json, the one named "default" of
 * several. ST_BAD_INPUT for a file that is none. */
WARN_UNUSED status chat_template_find(const conf *c, chat_template *out);

/* ST_CONFIG for a template that is not known, with what would be used instead, unless
 * model.chat_template is instruct. Plain text (data.format text) needs no template. *out as found;
 * path is
 * "" where nothing was looked for. */
WARN_UNUSED status chat_template_check(const conf *c, chat_template *out);

#endif
