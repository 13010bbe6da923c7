/* question.c: finds the question of question.h in the tokens. By the chat template a conversation
 * is
 *
 *   (<|im_start|> role \n what is said <|im_end|> \n)*  <|im_start|> assistant \n answer
 *
 * and the targets of a reply are those of its answer, so the question stands between the last two
 * <|im_start|> before them. */
#include "trainer/eval/question.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
