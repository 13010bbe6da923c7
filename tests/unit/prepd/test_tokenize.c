/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the verb `prepd tokenize`, which runs in a child process and is talked to through pipes,
 * as another program would. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/tokenizer/tokenizer.h"
#include "prepd/cli/verbs.h"

typedef struct child {
    pid_t pid;
    int to, from; /* our ends of the pipes to its input and from its output */
    int note;     /* our end of the pipe that its error message comes through */
} child;

static char *model_folder(void)
{
    const char *source = getenv("TESSERA_SOURCE");
    char *path;
    assert_true(asprintf(&path, "%s/tests/golden/tokenizer/strings", source ? source : ".") > 0);
    return path;
}

/* The verb removes the arguments that it has read from argv, so it gets a copy. */
static status tokenize(int argc, const char *const *argv)
{
    char *words[8] = {NULL};
    assert_true(argc < 8);
    for (int i = 0; i < argc; i++)
        words[i] = (char *)(uintptr_t)argv[i];
    return verb_tokenize(argc, words);
}

static child start_child(const char *const *argv)
{
    int in[2], out[2], note[2], argc = 0;
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(note), 0);
    while (argv[argc])
        argc++;
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        close(note[0]);
        status st = tokenize(argc, argv);
        if (st != ST_OK)
            dprintf(note[1], "%s", status_text());
        fflush(stdout);
        _exit(status_exit_code(st));
    }
    close(in[0]);
    close(out[1]);
    close(note[1]);
    return (child){pid, in[1], out[0], note[0]};
}

static void read_to_end(int fd, char *out, size_t size)
{
    size_t count = 0;
    for (ssize_t got; count + 1 < size && (got = read(fd, out + count, size - 1 - count)) > 0;)
        count += (size_t)got;
    out[count] = 0;
    close(fd);
}

/* Gives the verb this input and reads all of its output and its error message. Returns its exit
 * code. */
static int run_tokenize(const char *flag, const char *input, size_t size, char *out,
                        size_t out_size, char *note, size_t note_size)
{
    char *folder = model_folder();
    const char *const argv[] = {"tokenize", "--model", folder, flag, NULL};
    child process = start_child(argv);
    assert_int_equal(write(process.to, input, size), size);
    close(process.to);
    read_to_end(process.from, out, out_size);
    read_to_end(process.note, note, note_size);
    int code;
    assert_int_equal(waitpid(process.pid, &code, 0), process.pid);
    free(folder);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void test_tokenize__lines(void **state)
{
    (void)state;
    char out[256], note[256];
    static const char in[] = "red\n\n<|im_end|>a\r\nA"; /* the last line has no newline */
    assert_int_equal(run_tokenize(NULL, in, strlen(in), out, sizeof out, note, sizeof note), 0);
    /* An empty line gives an empty line, and CR is a character like any other (id 201). */
    char want[256];
    char *folder = model_folder();
    tokenizer *vocabulary = NULL;
    tokenizer_scratch *scratch = NULL;
    token_list red = {0};
    assert_ok(tokenizer_load(folder, &vocabulary));
    assert_ok(tokenizer_scratch_new(vocabulary, &scratch));
    assert_ok(tokenizer_encode(vocabulary, scratch, "red", 3, &red));
    size_t count = 0;
    for (size_t i = 0; i < red.count; i++)
        count += (size_t)sprintf(want + count, "%s%d", i ? " " : "", red.id[i]);
    sprintf(want + count, "\n\n%d 64 201\n32\n", tokenizer_added(vocabulary, "<|im_end|>"));
    assert_string_equal(out, want);
    token_list_done(&red);
    tokenizer_scratch_free(&scratch);
    tokenizer_free(&vocabulary);
    free(folder);
}

static void test_tokenize__json_lines(void **state)
{
    (void)state;
    char out[256], note[256];
    static const char in[] = "\"\"\n\"a\\n\"\n \"\\u0041\" \n\"a\\u0000a\"";
    assert_int_equal(run_tokenize("--jsonl", in, strlen(in), out, sizeof out, note, sizeof note),
                     0);
    assert_string_equal(out, "[]\n[64, 198]\n[32]\n[64, 188, 64]\n");
    assert_int_equal(run_tokenize("--jsonl", "", 0, out, sizeof out, note, sizeof note), 0);
    assert_string_equal(out, "");
}

static void test_tokenize__bad_json_names_the_line(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"a", "", "a", "[\"a\"]", "1", "\"a\" \"b\"", "\"\xFF\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char in[64], out[256], note[1024];
        snprintf(in, sizeof in, "\"A\"\n%s\n\"A\"\n", bad[i]);
        assert_int_equal(
            run_tokenize("--jsonl", in, strlen(in), out, sizeof out, note, sizeof note), 65);
        /* the line before the bad one is answered, the one after it is not */
        assert_string_equal(out, "[32]\n");
        assert_non_null(strstr(note, "standard input:2:"));
        assert_non_null(strstr(note, "JSON string"));
    }
}

static void test_tokenize__long_line(void **state)
{
    (void)state;
    enum { SIZE = 50000, OUT = 4 * SIZE };
    char *in = malloc(SIZE), *out = malloc(OUT), note[64];
    memset(in, '1', SIZE); /* each digit is a token, so the output is "16 16 ..." */
    assert_int_equal(run_tokenize(NULL, in, SIZE, out, OUT, note, sizeof note), 0);
    assert_int_equal(strlen(out), 3 * SIZE);
    assert_memory_equal(out, "16 16 ", 6);
    assert_string_equal(out + 3 * SIZE - 3, "16\n");
    free(in);
    free(out);
}

/* Each line is answered before the next one is read. */
static void test_tokenize__answers_each_line_at_once(void **state)
{
    (void)state;
    char *folder = model_folder(), line[32];
    const char *const argv[] = {"tokenize", "--jsonl", "--model", folder, NULL};
    child process = start_child(argv);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(write(process.to, "\"A\"\n", 4), 4);
        assert_int_equal(read(process.from, line, 5), 5);
        assert_memory_equal(line, "[32]\n", 5);
    }
    close(process.to);
    close(process.from);
    close(process.note);
    int code;
    assert_int_equal(waitpid(process.pid, &code, 0), process.pid);
    assert_int_equal(code, 0);
    free(folder);
}

static void test_tokenize__command_line(void **state)
{
    (void)state;
    const char *const none[] = {"tokenize", NULL};
    const char *const half[] = {"tokenize", "--model", NULL};
    const char *const odd[] = {"tokenize", "--model", "x", "--json", NULL};
    const char *const absent[] = {"tokenize", "--model=/nowhere", NULL};
    assert_fails(ST_USAGE, tokenize(1, none), "needs --model DIR");
    assert_fails(ST_USAGE, tokenize(2, half), "--model needs a value");
    assert_fails(ST_USAGE, tokenize(4, odd), "--json\"");
    assert_fails(ST_NO_INPUT, tokenize(2, absent), "/nowhere/tokenizer.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenize__lines),
        cmocka_unit_test(test_tokenize__json_lines),
        cmocka_unit_test(test_tokenize__bad_json_names_the_line),
        cmocka_unit_test(test_tokenize__long_line),
        cmocka_unit_test(test_tokenize__answers_each_line_at_once),
        cmocka_unit_test(test_tokenize__command_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
