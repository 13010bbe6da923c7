/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_tokenize.c: `prepd tokenize`, which converts each line of standard input to a line of ids.
 *
 * A line is the bytes before its LF (a CR belongs to the line; the last LF may be missing), or with
 * --jsonl one JSON string. Answers are flushed before waiting for more input, so that another
 * program can exchange lines through two pipes. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json/json.h"
#include "common/model_folder/model_files.h"
#include "common/tokenizer/tokenizer.h"
#include "common/program/verb.h"
#include "prepd/cli/verbs.h"

enum { READ_BYTES = 65536 };

static const char STDIN_NAME[] = "standard input";

typedef struct answering {
    tokenizer *tokenizer;
    tokenizer_scratch *scratch;
    token_list tokens;
    bool jsonl;
    int64_t line; /* number of the input line, from 1 */
} answering;

static status read_options(int argc, char **argv, const char **out_model, bool *out_jsonl)
{
    *out_jsonl = verb_take_flag(&argc, argv, "--jsonl");
    TRY(verb_take(&argc, argv, "--model", out_model));
    TRY(verb_all_taken(argc, argv));
    if (!*out_model || !**out_model)
        return FAIL(ST_USAGE, "tokenize needs --model DIR, the folder of tokenizer.json");
    return ST_OK;
}

static void put_ids(const answering *answer)
{
    if (answer->jsonl)
        putchar('[');
    for (size_t i = 0; i < answer->tokens.count; i++) {
        if (i)
            fputs(answer->jsonl ? ", " : " ", stdout);
        printf("%d", answer->tokens.id[i]);
    }
    fputs(answer->jsonl ? "]\n" : "\n", stdout);
}

static status answer_line(answering *answer, const char *text, size_t size)
{
    json_value *value = NULL;
    answer->line++;
    answer->tokens.count = 0;
    if (answer->jsonl) {
        if (json_parse(text, size, STDIN_NAME, &value) != ST_OK) {
            status code = status_last()->code;
            return FAIL_AT(code, STDIN_NAME, answer->line, -1, "expected a JSON string: %s",
                           status_last()->message);
        }
        if (json_typeof(value) != JSON_TEXT) {
            json_type found = json_typeof(value);
            json_free(&value);
            return FAIL_AT(ST_BAD_INPUT, STDIN_NAME, answer->line, -1,
                           "expected a JSON string, found %s", json_type_name(found));
        }
        text = json_text(value, "");
        size = json_text_size(value);
    }
    status st = tokenizer_encode(answer->tokenizer, answer->scratch, text, size, &answer->tokens);
    json_free(&value);
    if (st != ST_OK)
        return status_context(st, "%s, line %lld", STDIN_NAME, (long long)answer->line);
    put_ids(answer);
    return ST_OK;
}

static status flush_stdout(void)
{
    if (fflush(stdout) || ferror(stdout))
        return FAIL(ST_IO, "standard output cannot be written: %s", strerror(errno));
    return ST_OK;
}

/* Answers every whole line in buffer [size], of which the first `searched` bytes have no LF.
 * *out_used gets the bytes of the lines answered. */
static status answer_lines(answering *answer, const char *buffer, size_t size, size_t searched,
                           size_t *out_used)
{
    size_t used = 0;
    const char *end;
    while ((end = memchr(buffer + searched, '\n', size - searched))) {
        TRY(answer_line(answer, buffer + used, (size_t)(end - buffer) - used));
        used = searched = (size_t)(end - buffer) + 1;
    }
    *out_used = used;
    return ST_OK;
}

static status answer_input(answering *answer)
{
    char *buffer = NULL;
    size_t size = 0, capacity = 0;
    status st = ST_OK;
    for (;;) {
        if (capacity - size < READ_BYTES) {
            size_t grown = 2 * capacity + READ_BYTES;
            char *moved = realloc(buffer, grown);
            if (!moved) {
                st = FAIL_AT(ST_NO_MEMORY, STDIN_NAME, answer->line + 1, -1,
                             "no memory for a line of %zu bytes", grown);
                break;
            }
            buffer = moved;
            capacity = grown;
        }
        TRY_OR(done, flush_stdout());
        ssize_t got = read(STDIN_FILENO, buffer + size, capacity - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            st = FAIL_IN(ST_IO, STDIN_NAME, "cannot be read: %s", strerror(errno));
            break;
        }
        if (got == 0) {
            if (size)
                st = answer_line(answer, buffer, size);
            break;
        }
        size_t used, searched = size;
        size += (size_t)got;
        TRY_OR(done, answer_lines(answer, buffer, size, searched, &used));
        memmove(buffer, buffer + used, size - used);
        size -= used;
    }
done:
    free(buffer);
    return st;
}

status verb_tokenize(int argc, char **argv)
{
    const char *model = NULL;
    char folder[STATUS_PATH_MAX];
    answering answer = {0};
    status st;
    TRY(read_options(argc, argv, &model, &answer.jsonl));
    TRY(model_files_find(model, folder));
    TRY(tokenizer_load(folder, &answer.tokenizer));
    TRY_OR(done, tokenizer_scratch_new(answer.tokenizer, &answer.scratch));
    st = answer_input(&answer);
    if (st != ST_OK) { /* the answers to the lines before the bad one are printed */
        (void)fflush(stdout);
        goto done;
    }
    st = flush_stdout();
done:
    token_list_done(&answer.tokens);
    tokenizer_scratch_free(&answer.scratch);
    tokenizer_free(&answer.tokenizer);
    return st;
}
