/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of prepd's verbs with their help, and main. The options that a verb shares with
 * others come from options.def; what stands here is its own. */
#include "common/program/verb.h"
#include "prepd/cli/verbs.h"

#define CONFIG "-c FILE [--section.key VALUE ...]"
#define DAEMON "-c FILE | --connect ENDPOINT [--keys DIR]"
#define WHICH_DAEMON                                                                               \
    "\n"                                                                                           \
    "  -c FILE              the daemon's configuration, with prepd.endpoint and\n"                 \
    "                       prepd.keys\n"                                                          \
    "  --connect ENDPOINT   instead of -c: its prepd.endpoint, ipc://PATH or\n"                    \
    "                       tcp://HOST:PORT\n"                                                     \
    "  --keys DIR           folder of client.key and daemon.pub (prepd keygen), for\n"             \
    "                       an endpoint beyond loopback\n"                                         \
    "Exit code 69 if no daemon answers there."

/* What --help lists first. */
static const char *const serving[] = {
    "data.format",   "data.path",        "model.path",     "training.seq_len",
    "prepd.workers", "image.max_pixels", "prepd.endpoint", NULL,
};
static const char *const reading[] = {
    "data.format", "data.path", "model.path", "training.seq_len", "prepd.workers", NULL,
};
static const char *const asking[] = {"prepd.endpoint", "prepd.keys", NULL};

static const verb verbs[] = {
    {.name = "serve",
     .run = verb_serve,
     .summary = "runs the daemon: indexes data, makes rows, serves trainers",
     .usage = CONFIG " [--quiet]",
     .help = "Runs the daemon: indexes the data set, makes rows with local workers, serves\n"
             "trainers.\n"
             "  --quiet   logs only warnings and errors\n"
             "SIGTERM or SIGINT stops it cleanly, a second one at once. SIGHUP reloads the\n"
             "options.",
     .options = true,
     .hidden = "--parent",
     .most_used = serving},
    {.name = "worker",
     .run = verb_worker,
     .summary = "runs more workers for a daemon, here or elsewhere",
     .usage = "--connect ENDPOINT [--data-root DIR] [--model DIR] [--keys DIR] [--workers N]",
     .help = "Runs more workers for a daemon and keeps them alive: one that dies is\n"
             "replaced.\n"
             "  --connect ENDPOINT   the daemon's prepd.endpoint with .workers appended (tcp:\n"
             "                       the next port)\n"
             "  --data-root DIR      where the images lie on this machine; without it the\n"
             "                       daemon sends them, if it has data.ship true\n"
             "  --model DIR          the model folder on this machine, if its path differs\n"
             "                       from the daemon's\n"
             "  --keys DIR           folder of client.key and daemon.pub (prepd keygen), for\n"
             "                       an endpoint beyond loopback\n"
             "  --workers N          number of worker processes; default 1\n"
             "On SIGTERM they finish what they are making and leave. If the daemon goes away,\n"
             "or sends them away for a while, they wait; for one that was never there, a\n"
             "minute.",
     .hidden = "--parent --supervisor --heard"},
    {.name = "check",
     .run = verb_check,
     .summary = "decodes every sample once and lists each bad one",
     .usage = CONFIG " [--hash]",
     .help = "Decodes and tokenises every sample once and lists each bad one: number, name,\n"
             "file, cause.\n"
             "  --hash   also lists the content hash of every image file\n"
             "Exit code 65 if any sample is bad.",
     .options = true,
     .most_used = reading},
    {.name = "plan",
     .run = verb_plan,
     .summary = "shows the rows, fill and buckets of an epoch",
     .usage = CONFIG,
     .help = "Shows the rows, fill and buckets of an epoch. Only image headers are decoded,\n"
             "for the index.",
     .options = true,
     .most_used = reading},
    {.name = "sample",
     .run = verb_sample,
     .summary = "writes one sample as the model sees it to a file",
     .usage = CONFIG " --index N [--out F.safetensors] [--png F.png|DIR] [--overwrite]",
     .help = "Writes one sample as the model sees it.\n"
             "  --index N     its position in the data set, from 0\n"
             "  --out F       the safetensors file to write: the row with its pixels\n"
             "  --png F|DIR   writes its pictures as PNG, resized as the model gets them, to\n"
             "                look at: one picture to F.png; several, or the frames of clips,\n"
             "                to the folder DIR\n"
             "  --overwrite   replaces what is there",
     .options = true,
     .most_used = reading},
    {.name = "tokenize",
     .run = verb_tokenize,
     .summary = "converts lines of standard input to token ids",
     .usage = "--model DIR [--jsonl]",
     .help = "Converts lines of standard input to token ids, one line for each.\n"
             "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face\n"
             "                cache\n"
             "  --jsonl       each line is a JSON string, each answer a JSON array"},
    {.name = "fingerprint",
     .run = verb_fingerprint,
     .summary = "prints what decides this machine's pixels and token ids",
     .usage = "[--model DIR]",
     .help = "Prints hashes of what makes rows on this machine, one per line: build (the\n"
             "sources of this program that make rows), images and videos (what the decoders\n"
             "make of built-in files) and tokens (what a model's tokenizer makes of built-in\n"
             "texts). A daemon refuses workers whose lines differ from its own.\n"
             "  --model DIR   the folder of tokenizer.json, or Org/Name in the Hugging Face\n"
             "                cache; without it the line tokens is left out",
     .hidden = "--parent --only"},
    {.name = "digest",
     .run = verb_digest,
     .summary = "prints one hash over the rows of some steps",
     .usage = CONFIG " --steps N [--from K]",
     .help = "Prints the digest of the rows of steps K to K+N-1, alone on the last line.\n"
             "Equal streams have equal digests, no matter which workers made the rows, which\n"
             "died, and how the rows were sent. The digest chains the digests of the rows in\n"
             "stream order; each covers every tensor and the pixels, but not the cursor.\n"
             "  --steps N   number of steps, of training.global_batch_size rows each\n"
             "  --from K    the first step; default 0",
     .options = true,
     .most_used = reading},
    {.name = "record",
     .run = verb_record,
     .summary = "writes rows to a file, which feed.replay gives to a trainer",
     .usage = CONFIG " --steps N [--from K] --out F [--overwrite]",
     .help = "Writes the rows of steps K to K+N-1 to a file that a trainer replays\n"
             "(feed.replay).\n"
             "  --steps N     number of steps, of training.global_batch_size rows each\n"
             "  --from K      the first step; default 0\n"
             "  --out F       the file to write; a command that is stopped leaves none\n"
             "  --overwrite   replaces a file that is there",
     .options = true,
     .most_used = reading},
    {.name = "synth",
     .run = verb_synth,
     .summary = "generates a data set with a tokenizer and a model folder",
     .usage = "--out DIR --images N --seed S [--sizes small|coco]",
     .help = "Generates a data set in the VQAv2 layout: JPEG pictures of shapes on textured\n"
             "backgrounds, the official pairs of JSON files for train and val, and\n"
             "DIR/model with a small tokenizer and model configuration. Every question text\n"
             "has all of its answers equally often.\n"
             "\n"
             "  --out DIR            folder to write: new, empty, or written by synth before\n"
             "  --images N           pictures in total, 2 to 1000000; a tenth of them (at\n"
             "                       least 64, at most half) are held out\n"
             "  --seed S             a number from 0; the same seed gives the same bytes\n"
             "  --sizes small|coco   sides of 60 to 100 pixels (default), or the sizes of\n"
             "                       COCO's"},
    {.name = "keygen",
     .run = verb_keygen,
     .summary = "makes CURVE keys for endpoints beyond loopback",
     .usage = "--out DIR [--client NAME [--roles ROLE[,ROLE..]]]",
     .help = "Makes CURVE keys for endpoints beyond loopback (prepd.keys).\n"
             "  --out DIR       the daemon's folder: daemon.key, daemon.pub, client.key,\n"
             "                  allowed\n"
             "  --client NAME   makes keys for another machine or user in DIR/NAME, to be\n"
             "                  copied there, and adds their public key to DIR/allowed (on\n"
             "                  SIGHUP a running daemon reads that file again)\n"
             "  --roles ROLES   what that client may do, separated by commas: rows (receive\n"
             "                  rows; the default), work (make them), trusted (make them and\n"
             "                  judge those of others, as this machine's own workers do),\n"
             "                  control (status, scale, drain and admit)"},
    {.name = "status",
     .run = verb_status,
     .summary = "shows the state of a running daemon",
     .usage = DAEMON " [--json]",
     .help = "Shows rows, rates, workers, consumers and quarantine of a running daemon.\n"
             "  --json               everything as a JSON object (fields:\n"
             "                       prepd/operating.md)" WHICH_DAEMON,
     .options = true,
     .most_used = asking},
    {.name = "scale",
     .run = verb_scale,
     .summary = "sets the number of local workers of a running daemon",
     .usage = "N " DAEMON,
     .help = "Sets the number of local workers of a running daemon.\n"
             "  N                    0 to 1024; with 0 only workers on other machines make\n"
             "                       rows. Workers over N first finish their rows. N\n"
             "                       holds until the daemon's next start, or a SIGHUP that\n"
             "                       changes prepd.workers" WHICH_DAEMON,
     .options = true,
     .most_used = asking},
    {.name = "drain",
     .run = verb_drain,
     .summary = "stops a running daemon for good without losing anything",
     .usage = DAEMON,
     .help = "Lets a running daemon finish the rows under way, without a time limit, and then\n"
             "stop. Workers on other machines and their supervisors leave with it. (After\n"
             "SIGTERM, for a restart, they wait for the next daemon.) Returns at once: the\n"
             "daemon has stopped when status no longer answers." WHICH_DAEMON,
     .options = true,
     .most_used = asking},
    {.name = "admit",
     .run = verb_admit,
     .summary = "lets a key work again that a running daemon has excluded",
     .usage = "NAME " DAEMON,
     .help = "Lets a key work again that a running daemon has excluded or watches, because\n"
             "its machine made rows that differ from the daemon's own or broke the protocol.\n"
             "  NAME                 the key's name, or without keys the address, as status\n"
             "                       shows it" WHICH_DAEMON,
     .options = true,
     .most_used = asking},
};

int main(int argc, char **argv)
{
    const program self = {.name = "prepd",
                          .purpose = "streams packed, tokenised image-text batches to trainers",
                          .verbs = verbs,
                          .count = sizeof verbs / sizeof *verbs};
    return program_run(&self, argc, argv);
}
