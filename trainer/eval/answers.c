/* SPDX-License-Identifier: Apache-2.0 */
/* answers.c: chooses documents of a row, finds their questions in the tokens, generates the
 * answers, then judges and prints them. By the chat template a conversation is
 *
 *   (<|im_start|> role \n what is said <|im_end|> \n)*  <|im_start|> assistant \n answer
 *
 * and the targets of a reply are those of its answer, so the question is between the last two
 * <|im_start|> before them. */
#include "trainer/eval/answers.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/json/json.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/prompt.h"

/* Finds the tokens [begin, end) of the last turn of a prompt that has ended, its role included;
 * without turns, all tokens. */
static void find_turn(const row *prompt, int32_t start, int64_t *out_begin, int64_t *out_end)
{
    int64_t at[2] = {-1, -1}; /* the last <|im_start|>, and the one before it */
    for (int64_t i = 0; i < prompt->n_tokens; i++)
        if (start >= 0 && prompt->input_ids[i] == start) {
            at[1] = at[0];
            at[0] = i;
        }
    *out_begin = at[1] >= 0 ? at[1] : 0;
    *out_end = at[1] >= 0 ? at[0] : prompt->n_tokens;
}

/* The line that is being written. */
typedef struct line {
    FILE *to;
    bool begun;   /* it has a word */
    bool picture; /* a picture stands after its last word */
} line;

static bool is_space(char letter)
{
    return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r';
}

static void add_words(line *to_line, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (is_space(text[i]))
            continue;
        const bool begins = i == 0 || is_space(text[i - 1]);
        if (begins && to_line->picture && to_line->begun)
            fputs(" [picture]", to_line->to);
        if (begins && to_line->begun)
            fputc(' ', to_line->to);
        fputc(text[i], to_line->to);
        to_line->begun = true;
        to_line->picture = false;
    }
}

/* Adds tokens without pictures. is_role: they begin a turn, whose first line names the speaker. */
static status add_stretch(line *to_line, const row *packed, int64_t begin, int64_t end,
                          const tokenizer *vocabulary, bool is_role)
{
    char *text = NULL;
    size_t size;
    TRY(tokenizer_decode(vocabulary, packed->input_ids + begin, (size_t)(end - begin), true, &text,
                         &size));
    const char *role_end = is_role ? memchr(text, '\n', size) : NULL;
    const size_t skipped = role_end ? (size_t)(role_end + 1 - text) : 0;
    add_words(to_line, text + skipped, size - skipped);
    free(text);
    return ST_OK;
}

static status add_turn(line *to_line, const row *packed, int64_t begin, int64_t end,
                       const tokenizer *vocabulary, bool has_role)
{
    for (int64_t from = begin, to; from < end; from = to) {
        const bool is_picture = packed->visual_row[from] >= 0;
        for (to = from; to < end && (packed->visual_row[to] >= 0) == is_picture; to++) {
        }
        if (is_picture)
            to_line->picture = true;
        else
            TRY(add_stretch(to_line, packed, from, to, vocabulary, has_role && from == begin));
    }
    return ST_OK;
}

/* Writes the question that a prompt ends with. */
static status question_of_prompt(const row *prompt, const tokenizer *vocabulary, char **out)
{
    const int32_t start = tokenizer_added(vocabulary, "<|im_start|>");
    int64_t begin, end;
    char *text = NULL;
    size_t size;
    find_turn(prompt, start, &begin, &end);
    line to_line = {.to = open_memstream(&text, &size)};
    if (!to_line.to)
        return FAIL(ST_NO_MEMORY, "no memory for a question");
    status st = add_turn(&to_line, prompt, begin, end, vocabulary, end < prompt->n_tokens);
    if (fclose(to_line.to) != 0 && st == ST_OK)
        st = FAIL(ST_NO_MEMORY, "no memory for a question");
    if (st == ST_OK)
        *out = text;
    else
        free(text);
    return st;
}

status question_of_reply(const row *packed, const reply *to, const tokenizer *vocabulary,
                         char **out)
{
    arena memory;
    row prompt;
    arena_init(&memory, 0);
    status st = prompt_of_reply(packed, to, &memory, &prompt);
    if (st == ST_OK)
        st = question_of_prompt(&prompt, vocabulary, out);
    arena_done(&memory);
    return st;
}

/* What is answered of a row: all replies of the chosen documents. */
typedef struct chosen {
    int64_t count;
    reply *reply;      /* [count] */
    bool *judged;      /* [count] it will be judged by the annotators' answers */
    bool *shown;       /* [count] it will be printed */
    token_list *words; /* [count] the generated answers */
} chosen;

static void chosen_done(chosen *picked)
{
    for (int64_t i = 0; i < picked->count && picked->words; i++)
        token_list_done(&picked->words[i]);
    free(picked->reply);
    free(picked->judged);
    free(picked->shown);
    free(picked->words);
}

/* The first item that a document's sample shows; -1: none. */
static int64_t first_item(const row *packed, int64_t doc)
{
    prompt_span items[PROMPT_SPANS];
    prompt_items(packed, doc, items);
    for (int part = 0; part < PROMPT_SPANS; part++)
        if (items[part].last > items[part].first)
            return items[part].first;
    return -1;
}

/* Marks documents, from the first on, until they have `most` replies to show. only_new: leaves out
 * those about the pictures of the document before. Returns how many replies are shown then. */
static int64_t mark_shown(const row *packed, const reply *replies, int64_t count, bool only_new,
                          int64_t most, int64_t so_far, bool *shown)
{
    int64_t before = -1; /* the first item of the document before */
    for (int64_t i = 0, end; i < count && so_far < most; i = end) {
        const int64_t doc = replies[i].doc, first = first_item(packed, doc);
        const bool is_new = first < 0 || first != before;
        for (end = i; end < count && replies[end].doc == doc; end++) {
        }
        before = first;
        if (shown[i] || (only_new && !is_new))
            continue;
        for (int64_t k = i; k < end && so_far < most; k++, so_far++)
            shown[k] = true;
    }
    return so_far;
}

/* Chooses the documents of a row and counts what is shown and judged. All ranks must choose the
 * same ones, since they generate together; so counting comes before anything that can fail on one
 * rank alone. */
static status choose_replies(answers *state, const row *packed, const json_value *references,
                             const reply *replies, int64_t count, chosen *out)
{
    const int64_t most = state->session->conf->eval_generate;
    const size_t room = (size_t)count + 1;
    bool *shown = calloc(room, sizeof *shown);
    *out = (chosen){.reply = calloc(room, sizeof *out->reply),
                    .judged = calloc(room, sizeof *out->judged),
                    .shown = calloc(room, sizeof *out->shown),
                    .words = calloc(room, sizeof *out->words)};
    if (!shown || !out->reply || !out->judged || !out->shown || !out->words) {
        free(shown);
        return FAIL(ST_NO_MEMORY, "answers: out of memory");
    }
    int64_t n_shown = mark_shown(packed, replies, count, true, state->show, 0, shown);
    n_shown = mark_shown(packed, replies, count, false, state->show, n_shown, shown);
    state->show -= n_shown;
    bool is_chosen = false; /* the document of the reply */
    for (int64_t i = 0; i < count; i++) {
        const bool is_first = i == 0 || replies[i].doc != replies[i - 1].doc;
        const json_value *reference =
            references ? json_item(references, (size_t)replies[i].doc) : NULL;
        const bool judge = is_first && reference && json_typeof(reference) == JSON_OBJECT &&
                           (most < 0 || state->judged < most);
        is_chosen = is_first ? judge || shown[i] : is_chosen;
        if (!is_chosen)
            continue;
        state->judged += judge;
        out->reply[out->count] = replies[i];
        out->judged[out->count] = judge;
        out->shown[out->count++] = shown[i];
    }
    free(shown);
    return ST_OK;
}

/* Puts U+FFFD, as HTML does, in place of each NUL, at which a text that is shown would end. */
static status show_nuls(char **inout, size_t size)
{
    static const char shown[] = "\xEF\xBF\xBD";
    if (!memchr(*inout, 0, size))
        return ST_OK;
    char *out = malloc(3 * size + 1), *at = out;
    if (!out)
        return FAIL(ST_NO_MEMORY, "no memory for an answer of %zu bytes", size);
    for (size_t i = 0; i < size; i++)
        if ((*inout)[i])
            *at++ = (*inout)[i];
        else
            at = mempcpy(at, shown, sizeof shown - 1);
    *at = 0;
    free(*inout);
    *inout = out;
    return ST_OK;
}

/* The question and the reference answer of a reply; the caller frees both. */
static status texts_of(const session *run, const row *packed, const reply *to, char **out_asked,
                       char **out_wanted)
{
    size_t size;
    TRY(question_of_reply(packed, to, run->tokenizer, out_asked));
    TRY(tokenizer_decode(run->tokenizer, packed->input_ids + to->begin,
                         (size_t)(to->end - to->begin), true, out_wanted, &size));
    return show_nuls(out_wanted, size);
}

/* Compares generated words with the reference: their tokens, of which the reference has those that
 * end it besides. */
static page_verdict verdict_of(const row *packed, const reply *to, const token_list *words,
                               const model_dims *dims)
{
    const int32_t *wanted = packed->input_ids + to->begin;
    const int64_t count = to->end - to->begin, said = (int64_t)words->count;
    for (int64_t i = 0; i < said; i++)
        if (i >= count || words->id[i] != wanted[i])
            return PAGE_WRONG;
    if (said == count || dims_is_end(dims, wanted[said]))
        return PAGE_RIGHT;
    return said < GENERATE_MAX ? PAGE_WRONG : PAGE_RIGHT_SO_FAR;
}

/* Judges and prints an answer, and puts it on the page, as chosen. */
static status tell_answer(answers *state, const row *packed, const json_value *references,
                          const chosen *picked, int64_t index)
{
    const session *run = state->session;
    const token_list *ids = &picked->words[index];
    const reply *to = &picked->reply[index];
    char *words = NULL, *asked = NULL, *wanted = NULL;
    size_t size;
    status st = ST_OK;
    page_entry entry = {.score = -1,
                        .verdict = verdict_of(packed, to, ids, &run->dims),
                        .goes_on = index > 0 && picked->reply[index - 1].doc == to->doc};
    entry.is_cut = ids->count == GENERATE_MAX && entry.verdict != PAGE_RIGHT;
    TRY_OR(done, tokenizer_decode(run->tokenizer, ids->id, ids->count, true, &words, &size));
    TRY_OR(done, texts_of(run, packed, to, &asked, &wanted));
    if (picked->judged[index])
        TRY_OR(done, vqa_tally_add(state->tally, json_item(references, (size_t)to->doc),
                                   span_of(words, size), &entry.score));
    TRY_OR(done, show_nuls(&words, size));
    if (picked->shown[index])
        printf("  sample %-8" PRIu64 " %-48s answer: %-10s model: %s\n",
               packed->doc_sample_id[to->doc], escape_text(asked).text, escape_text(wanted).text,
               escape_text(words).text);
    entry.question = asked;
    entry.reference = wanted;
    entry.words = words;
    if (state->page)
        TRY_OR(done, page_add(state->page, packed, to->doc, &entry));
done:
    free(words);
    free(asked);
    free(wanted);
    return st;
}

status answers_row(answers *state, const row *packed, const reply *replies, int64_t count)
{
    session *run = state->session;
    json_value *references = NULL;
    chosen picked = {0};
    status st = ST_OK;
    if (!run->generator || !run->tokenizer || !generate_can(run->generator, packed))
        return ST_OK;
    if (packed->references[0])
        TRY(json_parse(packed->references, strlen(packed->references), "references", &references));
    TRY_OR(done, choose_replies(state, packed, references, replies, count, &picked));
    TRY_OR(done, generate_answers(run->generator, packed, picked.reply, picked.count, GENERATE_MAX,
                                  picked.words));
    for (int64_t i = 0; i < picked.count && state->trouble.code == ST_OK; i++)
        if (tell_answer(state, packed, references, &picked, i) != ST_OK)
            state->trouble = *status_last();
done:
    json_free(&references);
    chosen_done(&picked);
    return st;
}
