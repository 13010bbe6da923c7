/* main.c: prepd's verbs and their help. */
#include "common/program/verb.h"
#include "prepd/cli/verbs.h"

#define CONFIG "-c FILE [--section.key VALUE ...]"
#define DAEMON "-c FILE | --connect ENDPOINT [--keys DIR]"
#define WHICH_DAEMON                                                                               \
    "\n"                                                                                           \
    "  -c FILE              where the daemon is: prepd.endpoint, prepd.keys\n"                     \
    "  --connect ENDPOINT   instead of -c: its prepd.endpoint, ipc://PATH or tcp://HOST:PORT\n"    \
    "  --keys DIR           client.key and daemon.pub (prepd keygen), beyond loopback\n"           \
    "Exit code 69 if no daemon answers there."

static const char *const where[] = {"prepd.endpoint", "prepd.keys", NULL};

static const verb verbs[] = {
    {"serve", verb_serve, "the daemon: indexes a data set, makes rows, serves trainers",
     CONFIG " [--quiet] [--recording FILE]",
     "The daemon: indexes the data set, makes rows with local workers, serves trainers.\n"
     "  --quiet            warnings and errors alone\n"
     "  --recording FILE   serves what prepd record wrote, over and over; no data set, no workers\n"
     "SIGTERM or SIGINT stops it cleanly; a second one at once. SIGHUP reads the options again.",
     true, "--parent"},
    {"worker", verb_worker, "more workers for a daemon, here or on another machine",
     "--connect ENDPOINT [--data-root DIR] [--model DIR] [--keys DIR] [--workers N]",
     "More workers for a daemon, kept alive: one that dies is started again.\n"
     "  --connect ENDPOINT   the daemon's prepd.endpoint with .workers appended (tcp: the next "
     "port)\n"
     "  --data-root DIR      where the images lie on this machine; without it the daemon sends\n"
     "                       them, if it has data.ship true\n"
     "  --model DIR          the model folder here, if it is not where the daemon has it\n"
     "  --keys DIR           client.key and daemon.pub (prepd keygen), beyond loopback\n"
     "  --workers N          so many processes; default 1\n"
     "SIGTERM: they finish what is in work and leave. They wait a minute for a daemon that is\n"
     "away.",
     false, "--parent --supervisor --keeper --heard"},
    {"check", verb_check, "decodes every sample once and lists each bad one", CONFIG " [--hash]",
     "Decodes and tokenises every sample once and lists each bad one: number, name, file, cause.\n"
     "  --hash   also the content hash of every image file\n"
     "Exit code 65 if any sample is bad.",
     true, NULL},
    {"plan", verb_plan, "rows, fill and buckets of an epoch; nothing is decoded", CONFIG,
     "Rows, fill and buckets of an epoch. Nothing is decoded but image headers, for the index.",
     true, NULL},
    {"sample", verb_sample, "one sample as the model sees it, as a safetensors file",
     CONFIG " --index N --out F.safetensors",
     "One sample as the model sees it.\n"
     "  --index N   position in the data set, from 0\n"
     "  --out F     the row, pixels included, as a safetensors file",
     true, NULL},
    {"tokenize", verb_tokenize, "lines of standard input to token ids", "--model DIR [--jsonl]",
     "Lines of standard input to token ids, one line each.\n"
     "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face cache\n"
     "  --jsonl       each line is a JSON string, each answer a JSON array",
     false, NULL},
    {"fingerprint", verb_fingerprint, "what makes pixels and ids on this machine", "[--model DIR]",
     "Prints hashes of what makes rows on this machine, one on a line: build (the sources of this\n"
     "program that make rows), images and videos (what their libraries make of built-in ones) and\n"
     "tokens (what a model's tokenizer makes of built-in texts). Workers whose lines differ from\n"
     "the daemon's are refused.\n"
     "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face cache; "
     "without\n"
     "                it there is no line of tokens",
     false, "--parent --only"},
    {"digest", verb_digest, "one hash over the rows of some steps", CONFIG " --steps N [--from K]",
     "The digest of the rows of steps K to K+N-1, alone on the last line: equal streams have\n"
     "equal digests, whatever workers, deaths and transport. It is the chain of the digests of\n"
     "those rows in stream order: every tensor with its pixels, no cursor; K only says where the\n"
     "chain begins, so rows have the same digest however the stream came to them.\n"
     "  --steps N   so many steps of training.global_batch_size rows\n"
     "  --from K    the first one; default 0",
     true, NULL},
    {"record", verb_record, "a stream into a file, which feed.replay trains from",
     CONFIG " --steps N [--from K] --out F",
     "The rows of steps K to K+N-1 in a file that a trainer replays (feed.replay).\n"
     "  --steps N   so many steps of training.global_batch_size rows\n"
     "  --from K    the first one; default 0\n"
     "  --out F     the file",
     true, NULL},
    {"synth", verb_synth, "a generated data set with a tokenizer and a model folder",
     "--out DIR --images N --seed S [--sizes small|coco]",
     "Generates a data set in the VQAv2 layout: JPEG pictures of shapes on textured grounds, the\n"
     "official pairs of JSON files for train and val, and DIR/model with a small tokenizer and\n"
     "model configuration. Every question text has all its answers equally often.\n"
     "\n"
     "  --out DIR             folder to write; new, empty, or one that synth wrote before\n"
     "  --images N            pictures in total, 2 to 1000000; a tenth (at least 64, at most "
     "half)\n"
     "                        are held out\n"
     "  --seed S              the same seed, from 0, gives the same bytes\n"
     "  --sizes small|coco    sides of 60 to 100 pixels (default), or those of COCO",
     false, NULL},
    {"keygen", verb_keygen, "CURVE keys for endpoints beyond loopback", "--out DIR [--client NAME]",
     "CURVE keys for endpoints beyond loopback (prepd.keys).\n"
     "  --out DIR       the daemon's folder: daemon.key, daemon.pub, client.key, allowed\n"
     "  --client NAME   keys for another machine in DIR/NAME, to be copied there; its public key "
     "is\n"
     "                  added to DIR/allowed (SIGHUP lets a running daemon read that again)",
     false, NULL},
    {"status", verb_status, "how a running daemon does", DAEMON " [--json]",
     "Rows, rates, workers, consumers and quarantine of a running daemon.\n"
     "  --json               all of it as a JSON object (prepd/README.md names its "
     "fields)" WHICH_DAEMON,
     true, NULL, where},
    {"scale", verb_scale, "sets the number of local workers of a running daemon", "N " DAEMON,
     "Sets the number of local workers of a running daemon.\n"
     "  N                    0 to 1024; with 0 only workers elsewhere make rows. Those that are\n"
     "                       too many finish what is in work; until the daemon's next start, or\n"
     "                       a SIGHUP that changes prepd.workers" WHICH_DAEMON,
     true, NULL, where},
    {"drain", verb_drain, "stops a running daemon for good, with nothing lost", DAEMON,
     "A running daemon finishes what is in work, without a time limit, then stops; workers and\n"
     "their supervisors on other machines leave with it. (SIGTERM stops it for a restart: they "
     "wait\n"
     "for the next one.) Returns at once: the daemon is gone when status no longer "
     "answers." WHICH_DAEMON,
     true, NULL, where},
};

int main(int argc, char **argv)
{
    const program p = {.name = "prepd",
                       .purpose = "streams packed, tokenised image-text batches to trainers",
                       .verbs = verbs,
                       .n = sizeof verbs / sizeof *verbs};
    return program_run(&p, argc, argv);
}
