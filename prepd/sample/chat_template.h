/* SPDX-License-Identifier: Apache-2.0 */
/* chat_template.h: whether a model's own chat template gives the text that prepd writes.
 *
 * text.c writes conversations as the template of Qwen3-VL Instruct does, without a template engine.
 * A model folder may bring another template: that of a Thinking model puts <think> into answers,
 * and that of a fine-tuned model may do anything. Then the model would be trained on a form of text
 * in which it will never be asked. So the template is looked up where transformers looks it up, and
 * must be one that is known, by the hash of its text, to give the same result as text.c. */
#ifndef TESSERA_PREPD_SAMPLE_CHAT_TEMPLATE_H
#define TESSERA_PREPD_SAMPLE_CHAT_TEMPLATE_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "common/base/status.h"

typedef struct chat_template {
    char path[STATUS_PATH_MAX]; /* of the file that holds it; "" if the folder has no template */
    hash128 digest;             /* XXH3-128 of its text without a newline at the end, which never
                                 * changes what a template gives */
    const char *releases;       /* the models that have it; NULL if it is not known */
    bool thinks;                /* its text contains <think> */
} chat_template;

/* Finds the template that transformers takes from model.tokenizer, or else from model.path. If the
 * folder has a preprocessor_config.json, the processor's template comes first: that is
 * chat_template.json, or else chat_template.jinja. Otherwise, or if there is neither, it is the
 * tokenizer's: chat_template.jinja, or else "chat_template" of tokenizer_config.json; of several
 * templates there, the one named "default". ST_BAD_INPUT for a file that does not hold a template.
 */
WARN_UNUSED status chat_template_find(const conf *options, chat_template *out);

/* Finds the template and checks that it is known. ST_CONFIG for an unknown one, with a message that
 * says what prepd would write instead, unless model.chat_template is instruct. Plain text
 * (data.format text) needs no template: then nothing is looked up, and out->path is "". */
WARN_UNUSED status chat_template_check(const conf *options, chat_template *out);

#endif
