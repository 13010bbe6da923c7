/* main.c: verbs -> functions. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "trainer/verbs.h"

typedef struct verb {
    const char *name;
    status (*run)(int argc, char **argv);
    bool takes_options; /* -c FILE and --section.key VALUE */
    const char *usage, *help;
} verb;

static const verb verbs[] = {
    {"train", verb_train, true,
     "-c FILE [--section.key VALUE ...] [--nproc N] [--dry-run] [--profile]",
     "Train until training.steps or the stream's end; with eval.enable evaluate at the end; with\n"
     "checkpoint.enable write a Hugging Face folder into job.dump_folder. The rows come from\n"
     "prepd serve at prepd.endpoint, or from feed.replay. --dry-run: the ranks of the layout one\n"
     "after another, shapes alone: who stores and reads what, a step's calls and bytes, the\n"
     "files of a checkpoint, held against trainer plan; neither rows nor GPUs are needed. With\n"
     "--nproc each rank is a process, over a libnccl.so.2 that moves nothing (tests/nccl)."},
    {"eval", verb_eval, true, "-c FILE [--section.key VALUE ...] [--nproc N]",
     "Held-out loss and accuracy of model.path (which must hold weights), and the accuracy with\n"
     "images swapped. Needs prepd serve at prepd.endpoint. --nproc N: by the ranks of the layout."},
    {"verify", verb_verify, true, "-c FILE [--from STEP] [--to STEP] [--section.key VALUE ...]",
     "Replay steps of a run from one of its checkpoints (default: the oldest kept; 0: the start)\n"
     "and compare samples, loss and gradient norm with its ledger, bit for bit; names the first\n"
     "step that differs and exits with 65. Writes nothing. Needs the rows the run had."},
    {"check", verb_check, true, "-c FILE [--steps N] [--nproc N] [--section.key VALUE ...]",
     "Parity on your own model and data: the first N steps (2) on one rank, again with other\n"
     "activation checkpointing, other micro-batches, other threads, and resumed from a "
     "checkpoint,\n"
     "the documents of a row one by one, and with --nproc on as many ranks: a table of losses and\n"
     "gradient norms, whole and by group; 65 where one is off."},
    {"plan", verb_plan, true,
     "[-c FILE | --model.path DIR] [--measured FILE] [--sweep RANKS] [--documents L,L,..] "
     "[--grids TxHxW,..]",
     "Without rows: parameters and memory of a rank, bytes between ranks, FLOPs, and the "
     "predicted\n"
     "time and MFU of a step, by rates shipped for the H200 or those of --measured FILE (trainer\n"
     "bench ops --rates FILE). --sweep: layouts of that many ranks, fastest predicted first, each\n"
     "with the largest micro-batch that fits. With --documents (lengths) and --grids (in "
     "patches):\n"
     "the FLOPs of that batch by component, head at every position, nothing frozen."},
    {"probe", verb_probe, false,
     "--model DIR --batch F.safetensors --out G.safetensors [--aux COEF]",
     "One forward and backward of a row (prepd sample writes one). G holds logits [T, V], loss,\n"
     "aux_loss and grad.NAME of every parameter (of the mean loss over targets), all F32."},
    {"export", verb_export, false,
     "--model DIR --out DIR [--layout published|v5|per-expert] [--dtype bf16|f32] [--shard-bytes "
     "N]",
     "Load a Hugging Face folder and write it again, checked. Without options every tensor, file "
     "and\n"
     "the index stay as they are. --layout: how experts are stored; published is [E, in, out], for "
     "a\n"
     "text-only model per expert; v5 is [E, out, in]. --shard-bytes cuts new files."},
    {"bench", verb_bench, true,
     "ops [OP] [--rates FILE] [--count] | step [--layers N,N,..] [--ranks R] [--load L] [--live] | "
     "memory [--layers N] -c FILE | --model.path DIR",
     "ops: every op at the model's shapes for training.local_batch_size rows of training.seq_len,\n"
     "beside a large copy and a large product measured in the same run (--seconds S per line).\n"
     "--rates FILE keeps what trainer plan --measured reads. --count: no device, the bytes and "
     "FLOPs\n"
     "of each line in bf16 and the least time that an H200's ceilings allow.\n"
     "step: training.steps steps at each depth (0: all layers), a line through them, and what it\n"
     "says of the whole model with the optimiser shared by R ranks. Rows come from feed.replay, "
     "or\n"
     "are text, documents of bench.document tokens. --load L: the router is biased until the "
     "busiest\n"
     "expert has L times the mean load. --live: rows of whatever prepd.endpoint streams, and by "
     "how\n"
     "much each step start is delayed by them.\n"
     "memory: what training.steps steps take of the device's memory, each part beside its plan."},
    {"inspect", verb_inspect, false, "NAME|DIR",
     "Tensors, shapes, groups and counts of a preset or folder; on a folder with weights also "
     "what\n"
     "is missing, extra or misshapen."},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void print_help(FILE *to)
{
    fprintf(to, "trainer " TESSERA_VERSION ": trains Qwen3-VL mixture-of-experts models\n\n"
                "usage: trainer VERB ...\n\n");
    for (int i = 0; i < N_VERBS; i++) {
        const char *end = strchr(verbs[i].help, '\n');
        int n = end ? (int)(end - verbs[i].help) : (int)strlen(verbs[i].help);
        fprintf(to, "  %-8s %s\n           %.*s\n", verbs[i].name, verbs[i].usage, n,
                verbs[i].help);
    }
    fprintf(to, "\ntrainer VERB --help tells more. Exit codes follow sysexits.h.\n");
}

static void print_verb_help(const verb *v)
{
    printf("usage: trainer %s %s\n\n%s\n", v->name, v->usage, v->help);
    if (v->takes_options) {
        printf("\n  -c FILE           options from a YAML file\n"
               "  --section.key V   one option, over the file\n"
               "  --print-config    the resolved options, and no more\n\n");
        conf_help(stdout, true);
    }
}

/* What was printed must have arrived: a full disk is no success. */
static int leave(status st)
{
    if (st == ST_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        st = FAIL(ST_IO, "standard output: write failed: %s", strerror(errno));
        log_status();
    }
    return status_exit_code(st);
}

static bool asks(int argc, char **argv, const char *flag)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return true;
    return false;
}

/* --print-config: what this command line means, loadable again. */
static status print_config(int argc, char **argv)
{
    int n = 0;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--print-config") != 0)
            argv[n++] = argv[i];
    conf c;
    TRY(conf_load(&c, &n, argv));
    conf_print(&c, stdout);
    conf_done(&c);
    return ST_OK;
}

int main(int argc, char **argv)
{
    log_init("trainer", LOG_INFO, false);
    if (argc < 2) {
        print_help(stderr);
        return status_exit_code(ST_USAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("trainer " TESSERA_VERSION "\n");
        return 0;
    }
    for (int i = 0; i < N_VERBS; i++) {
        const verb *v = &verbs[i];
        if (strcmp(argv[1], v->name) != 0)
            continue;
        if (asks(argc - 1, argv + 1, "--help") || asks(argc - 1, argv + 1, "-h")) {
            print_verb_help(v);
            return leave(ST_OK);
        }
        status st = v->takes_options && asks(argc - 1, argv + 1, "--print-config")
                        ? print_config(argc - 1, argv + 1)
                        : v->run(argc - 1, argv + 1);
        if (st != ST_OK && st != ST_END)
            log_status();
        return leave(st);
    }
    fprintf(stderr, "trainer: no verb \"%s\"; trainer --help lists them\n", argv[1]);
    return status_exit_code(ST_USAGE);
}
