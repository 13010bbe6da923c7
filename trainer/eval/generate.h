/* generate.h: greedy continuation of one document of a row, for people to read.
 *
 * Each token is a forward pass over the document so far: exact and simple, meant for a handful of
 * short answers, not for the evaluation of a data set. */
#ifndef TESSERA_TRAINER_GENERATE_H
#define TESSERA_TRAINER_GENERATE_H

#include "trainer/session.h"

/* Whether answers to this row can be generated here: logits of f32, f64 or bf16, no video. */
bool generate_can(const session *s, const row *r);

/* Continues document doc of r from its first target on, until eos or max_new tokens (or the
 * micro-batch is full). Ids are appended to out. */
WARN_UNUSED status generate_answer(session *s, const row *r, int64_t doc, int64_t max_new,
                                   token_list *out);

/* The document as a row of its own, cut before its first target, with room for `extra` tokens.
 * Arrays in the arena. */
WARN_UNUSED status generate_prompt(const row *r, int64_t doc, int64_t extra, arena *a, row *out);
/* The whole document as a row of its own, with its labels and weights: unpacked. */
WARN_UNUSED status generate_document(const row *r, int64_t doc, arena *a, row *out);

#endif
