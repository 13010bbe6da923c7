/* main.c: prepd's verbs, their help, exit codes by sysexits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "prepd/verbs.h"
#include "prepd/verbs_child.h"

typedef struct verb {
    const char *name;
    status (*run)(int argc, char **argv);
    const char *usage, *help; /* help NULL: the verb tells its own */
    bool options;             /* takes -c FILE and --section.key VALUE */
} verb;

#define CONFIG "-c FILE [--section.key VALUE ...]"

static const verb verbs[] = {
    {"serve", verb_serve, CONFIG " [--quiet] [--recording FILE]",
     "The daemon: indexes the data set, makes rows with local workers, serves trainers.\n"
     "--recording FILE: serves what prepd record wrote, over and over; no data set, no workers.\n"
     "SIGTERM or SIGINT stops it cleanly; a second SIGINT at once.",
     true},
    {"worker", verb_worker,
     "--connect ENDPOINT [--data-root DIR] [--model DIR] [--keys DIR] [--workers N]",
     "More workers for a daemon, kept alive: one that dies is started again.\n"
     "  --connect ENDPOINT   the daemon's prepd.endpoint with .workers appended\n"
     "  --data-root DIR      where the images lie on this machine; without it the daemon sends\n"
     "                       them, if it has data.ship true\n"
     "  --model DIR          the model folder here, if it is not where the daemon has it\n"
     "  --keys DIR           client.key and daemon.pub (prepd keygen), beyond loopback\n"
     "  --workers N          so many processes; default 1\n"
     "SIGTERM: they finish what is in work and leave. They wait a minute for a daemon that is\n"
     "away.",
     false},
    {"check", verb_check, CONFIG " [--hash]",
     "Decodes and tokenises every sample once and lists each bad one: number, name, file, cause.\n"
     "  --hash   also the content hash of every image file\n"
     "Exit code 65 if any sample is bad.",
     true},
    {"plan", verb_plan, CONFIG,
     "Rows, fill and buckets of an epoch. Nothing is decoded but image headers, for the index.",
     true},
    {"sample", verb_sample, CONFIG " --index N --out F.safetensors",
     "One sample as the model sees it.\n"
     "  --index N   position in the data set, from 0\n"
     "  --out F     the row, pixels included, as a safetensors file",
     true},
    {"tokenize", verb_tokenize, "--model DIR [--jsonl]",
     "Lines of standard input to token ids, one line each.\n"
     "  --jsonl   each line is a JSON string, each answer a JSON array",
     false},
    {"digest", verb_digest, CONFIG " --steps N [--from K]",
     "The digest of the rows of steps K to K+N-1, alone on the last line: equal streams have\n"
     "equal digests, whatever workers, deaths and transport. It is the chain of the digests of\n"
     "those rows in stream order: every tensor with its pixels, no cursor; K only says where the\n"
     "chain begins, so rows have the same digest however the stream came to them.",
     true},
    {"record", verb_record, CONFIG " --steps N [--from K] --out F",
     "The rows of steps K to K+N-1 in a file that a trainer replays (feed.replay).", true},
    {"synth", verb_synth, "--out DIR --images N --seed S [--sizes small|coco]", NULL, false},
    {"keygen", verb_keygen, "--out DIR [--client NAME]",
     "CURVE keys for endpoints beyond loopback (prepd.keys).\n"
     "  --out DIR       the daemon's folder: daemon.key, daemon.pub, client.key, allowed\n"
     "  --client NAME   keys for another machine in DIR/NAME, to be copied there; its public key "
     "is\n"
     "                  added to DIR/allowed (SIGHUP lets a running daemon read that again)",
     false},
    {"status", verb_status, "-c FILE | --connect ENDPOINT [--keys DIR] [--json]",
     "Rows, rates, workers, consumers and quarantine of a running daemon.", true},
    {"scale", verb_scale, "N -c FILE | --connect ENDPOINT [--keys DIR]",
     "Sets the number of local workers of a running daemon.", true},
    {"drain", verb_drain, "-c FILE | --connect ENDPOINT [--keys DIR]",
     "A running daemon finishes what is in work, then stops.", true},
};
enum { N_VERBS = sizeof(verbs) / sizeof(*verbs) };

static void help_all(FILE *to)
{
    fprintf(to, "prepd %s: streams packed, tokenised image-text batches to trainers\n\n",
            TESSERA_VERSION);
    for (int i = 0; i < N_VERBS; i++)
        fprintf(to, "  prepd %-9s %s\n", verbs[i].name, verbs[i].usage);
    fprintf(to, "\n  prepd VERB --help    what it does, and the options it reads\n"
                "  prepd VERB -c FILE --print-config    the resolved options\n"
                "  prepd --reference    every option of both programs, as a page\n"
                "  prepd --version\n");
}

static void help_verb(const verb *v)
{
    printf("usage: prepd %s %s\n\n%s\n", v->name, v->usage, v->help);
    if (v->options) {
        printf("\n");
        conf_help(stdout, false);
    }
}

/* Edit distance of two short words. */
static int distance(const char *a, const char *b)
{
    enum { LONGEST = 32 };
    int line[LONGEST + 1];
    const int n = (int)strlen(b);
    if (n > LONGEST || strlen(a) > LONGEST)
        return LONGEST;
    for (int j = 0; j <= n; j++)
        line[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = line[0];
        line[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = line[j];
            best = line[j] + 1 < best ? line[j] + 1 : best;
            best = line[j - 1] + 1 < best ? line[j - 1] + 1 : best;
            line[j] = best;
        }
    }
    return line[n];
}

static status unknown_verb(const char *name)
{
    const verb *best = &verbs[0];
    for (int i = 1; i < N_VERBS; i++)
        if (distance(name, verbs[i].name) < distance(name, best->name))
            best = &verbs[i];
    return FAIL(ST_USAGE, "no verb \"%s\"; did you mean \"%s\"? prepd --help lists all", name,
                best->name);
}

static status print_config(int argc, char **argv)
{
    conf c;
    TRY(conf_load(&c, &argc, argv));
    conf_print(&c, stdout);
    conf_done(&c);
    return ST_OK;
}

static bool has_flag(int argc, char **argv, const char *flag)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return true;
    return false;
}

static status run(int argc, char **argv)
{
    if (argc < 2) {
        help_all(stderr);
        return FAIL(ST_USAGE, "a verb is needed");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help_all(stdout);
        return ST_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("prepd %s\n", TESSERA_VERSION);
        return ST_OK;
    }
    if (strcmp(name, "--reference") == 0) {
        conf_reference(stdout);
        return ST_OK;
    }
    for (int i = 0; i < N_VERBS; i++) {
        const verb *v = &verbs[i];
        if (strcmp(name, v->name) != 0)
            continue;
        if (v->help && (has_flag(argc, argv, "--help") || has_flag(argc, argv, "-h"))) {
            help_verb(v);
            return ST_OK;
        }
        argc--;
        argv++;
        if (v->options && verb_take_flag(&argc, argv, "--print-config"))
            return print_config(argc, argv);
        return v->run(argc, argv);
    }
    return unknown_verb(name);
}

int main(int argc, char **argv)
{
    log_init("prepd", LOG_INFO, false);
    status st = run(argc, argv);
    if (st != ST_OK)
        log_status();
    if (fflush(stdout) != 0 && st == ST_OK)
        return status_exit_code(ST_IO); /* the answer did not arrive */
    return status_exit_code(st);
}
