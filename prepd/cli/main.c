/* main.c: the table of prepd's verbs with their help, and main. The options that a verb shares with
 * others come from options.def; what stands here is its own. */
#include "common/program/verb.h"
#include "prepd/cli/verbs.h"

#define CONFIG "-c FILE [--section.key VALUE ...]"
#define DAEMON "-c FILE | --connect ENDPOINT [--keys DIR]"
#define WHICH_DAEMON                                                                               \
    "\n"                                                                                           \
    "  -c FILE              the daemon's configuration, with prepd.endpoint and prepd.keys\n"      \
    "  --connect ENDPOINT   instead of -c: its prepd.endpoint, ipc://PATH or tcp://HOST:PORT\n"    \
    "  --keys DIR           folder of client.key and daemon.pub (prepd keygen), for an\n"          \
    "                       endpoint beyond loopback\n"                                            \
    "Exit code 69 if no daemon answers there."

static const char *const where[] = {"prepd.endpoint", "prepd.keys", NULL};

static const verb verbs[] = {
    {"serve", verb_serve, "runs the daemon: indexes a data set, makes rows, serves trainers",
     CONFIG " [--quiet] [--recording FILE]",
     "Runs the daemon: indexes the data set, makes rows with local workers, serves trainers.\n"
     "  --quiet            logs only warnings and errors\n"
     "  --recording FILE   serves a file of prepd record over and over, without data or workers\n"
     "SIGTERM or SIGINT stops it cleanly, a second one at once. SIGHUP reloads the options.",
     true, "--parent"},
    {"worker", verb_worker, "runs more workers for a daemon, here or on another machine",
     "--connect ENDPOINT [--data-root DIR] [--model DIR] [--keys DIR] [--workers N]",
     "Runs more workers for a daemon and keeps them alive: one that dies is replaced.\n"
     "  --connect ENDPOINT   the daemon's prepd.endpoint with .workers appended (tcp: the next "
     "port)\n"
     "  --data-root DIR      where the images lie on this machine; without it the daemon sends\n"
     "                       them, if it has data.ship true\n"
     "  --model DIR          the model folder on this machine, if its path differs from the\n"
     "                       daemon's\n"
     "  --keys DIR           folder of client.key and daemon.pub (prepd keygen), for an\n"
     "                       endpoint beyond loopback\n"
     "  --workers N          number of worker processes; default 1\n"
     "On SIGTERM they finish what is in work and leave. If the daemon is away they wait a\n"
     "minute for it.",
     false, "--parent --supervisor --keeper --heard"},
    {"check", verb_check, "decodes every sample once and lists each bad one", CONFIG " [--hash]",
     "Decodes and tokenises every sample once and lists each bad one: number, name, file, cause.\n"
     "  --hash   also lists the content hash of every image file\n"
     "Exit code 65 if any sample is bad.",
     true, NULL},
    {"plan", verb_plan, "shows the rows, fill and buckets of an epoch; nothing is decoded", CONFIG,
     "Shows the rows, fill and buckets of an epoch. Only image headers are decoded, for the index.",
     true, NULL},
    {"sample", verb_sample, "writes one sample as the model sees it to a safetensors file",
     CONFIG " --index N --out F.safetensors",
     "Writes one sample as the model sees it.\n"
     "  --index N   its position in the data set, from 0\n"
     "  --out F     the safetensors file to write: the row with its pixels",
     true, NULL},
    {"tokenize", verb_tokenize, "converts lines of standard input to token ids",
     "--model DIR [--jsonl]",
     "Converts lines of standard input to token ids, one line for each.\n"
     "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face cache\n"
     "  --jsonl       each line is a JSON string, each answer a JSON array",
     false, NULL},
    {"fingerprint", verb_fingerprint, "prints what decides this machine's pixels and token ids",
     "[--model DIR]",
     "Prints hashes of what makes rows on this machine, one per line: build (the sources of this\n"
     "program that make rows), images and videos (what the decoders make of built-in files) and\n"
     "tokens (what a model's tokenizer makes of built-in texts). A daemon refuses workers whose\n"
     "lines differ from its own.\n"
     "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face cache; "
     "without\n"
     "                it the line tokens is left out",
     false, "--parent --only"},
    {"digest", verb_digest, "prints one hash over the rows of some steps",
     CONFIG " --steps N [--from K]",
     "Prints the digest of the rows of steps K to K+N-1, alone on the last line. Equal streams\n"
     "have equal digests, whatever workers made them, died, or sent them over which transport.\n"
     "The digest chains the digests of the rows in stream order; each covers every tensor and the\n"
     "pixels, but not the cursor. Rows have the same digest however the stream got to them.\n"
     "  --steps N   number of steps, of training.global_batch_size rows each\n"
     "  --from K    the first step; default 0",
     true, NULL},
    {"record", verb_record, "writes a stream to a file from which feed.replay trains",
     CONFIG " --steps N [--from K] --out F",
     "Writes the rows of steps K to K+N-1 to a file that a trainer replays (feed.replay).\n"
     "  --steps N   number of steps, of training.global_batch_size rows each\n"
     "  --from K    the first step; default 0\n"
     "  --out F     the file to write",
     true, NULL},
    {"synth", verb_synth, "generates a data set with a tokenizer and a model folder",
     "--out DIR --images N --seed S [--sizes small|coco]",
     "Generates a data set in the VQAv2 layout: JPEG pictures of shapes on textured grounds, the\n"
     "official pairs of JSON files for train and val, and DIR/model with a small tokenizer and\n"
     "model configuration. Every question text has all its answers equally often.\n"
     "\n"
     "  --out DIR             folder to write: new, empty, or written by synth before\n"
     "  --images N            pictures in total, 2 to 1000000; a tenth of them (at least 64, at\n"
     "                        most half) are held out\n"
     "  --seed S              a number from 0; the same seed gives the same bytes\n"
     "  --sizes small|coco    sides of 60 to 100 pixels (default), or the sizes of COCO's",
     false, NULL},
    {"keygen", verb_keygen, "makes CURVE keys for endpoints beyond loopback",
     "--out DIR [--client NAME]",
     "Makes CURVE keys for endpoints beyond loopback (prepd.keys).\n"
     "  --out DIR       the daemon's folder: daemon.key, daemon.pub, client.key, allowed\n"
     "  --client NAME   makes keys for another machine in DIR/NAME, to be copied there, and adds\n"
     "                  their public key to DIR/allowed (SIGHUP lets a running daemon reload that)",
     false, NULL},
    {"status", verb_status, "shows the state of a running daemon", DAEMON " [--json]",
     "Shows rows, rates, workers, consumers and quarantine of a running daemon.\n"
     "  --json               everything as a JSON object (fields: prepd/operating.md)" WHICH_DAEMON,
     true, NULL, where},
    {"scale", verb_scale, "sets the number of local workers of a running daemon", "N " DAEMON,
     "Sets the number of local workers of a running daemon.\n"
     "  N                    0 to 1024; with 0 only workers on other machines make rows. Workers\n"
     "                       over N first finish what is in work. N holds until the daemon's\n"
     "                       next start, or a SIGHUP that changes prepd.workers" WHICH_DAEMON,
     true, NULL, where},
    {"drain", verb_drain, "stops a running daemon for good without losing anything", DAEMON,
     "Lets a running daemon finish what is in work, without a time limit, and then stop. Workers\n"
     "on other machines and their supervisors leave with it. (After SIGTERM, for a restart, they\n"
     "wait for the next daemon.) Returns at once: the daemon has stopped when status no longer\n"
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
