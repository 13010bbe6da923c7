/* main.c: the trainer's verbs and their help. */
#include "common/program/verb.h"
#include "trainer/cli/verbs.h"

static const verb verbs[] = {
    {"train", verb_train, "trains, evaluates at the end, keeps and exports the model",
     "-c FILE [--section.key VALUE ...] [--nproc N] [--dry-run [--device NAME]] "
     "[--profile]",
     "Train until training.steps or the stream's end; with eval.enable evaluate at the end; with\n"
     "checkpoint.enable keep checkpoints to go on from, and leave the model as a Hugging Face\n"
     "folder, in job.dump_folder; without it no model is kept. The rows come from\n"
     "prepd serve at prepd.endpoint, or from feed.replay. --dry-run: the ranks of the layout one\n"
     "after another, shapes alone: who stores and reads what, a step's calls and bytes, the\n"
     "files of a checkpoint, held against trainer plan; neither rows nor GPUs are needed. They "
     "are\n"
     "planned on an H200, or the GPU that --device names as trainer plan's does. With\n"
     "--nproc each rank is a process, over a library in NCCL's place that moves nothing.\n"
     "--nproc N: starts the N ranks of the layout on this machine, each with a GPU of its own, or\n"
     "on CPUs by Open MPI's mpirun. Without it this is the only rank, or one that torchrun, srun\n"
     "or mpirun started.\n"
     "--profile: where a step's time goes, by the device's timestamps, told when the run ends.",
     true, NULL},
    {"eval", verb_eval, "held-out loss and accuracy of a model, and with images swapped",
     "-c FILE [--section.key VALUE ...] [--nproc N]",
     "Held-out loss and accuracy of model.path (which must hold weights), and the accuracy with\n"
     "images swapped. Needs prepd serve at prepd.endpoint. --nproc N: by the ranks of the layout.",
     true, NULL},
    {"verify", verb_verify, "steps of a run again, held against its ledger",
     "-c FILE [--from STEP] [--to STEP] [--section.key VALUE ...]",
     "Replay steps of a run from one of its checkpoints (default: the oldest kept; 0: the start)\n"
     "and compare samples, loss and gradient norm with its ledger, bit for bit; names the first\n"
     "step that differs and exits with 65. Writes nothing. Needs the rows the run had.",
     true, NULL},
    {"check", verb_check, "what must not change a step, on your own model and rows: a table",
     "-c FILE [--steps N] [--nproc N] [--section.key VALUE ...]",
     "Parity on your own model and data: the first N steps (2) on one rank, again with other\n"
     "activation checkpointing, other micro-batches, other threads, and resumed from a "
     "checkpoint,\n"
     "the documents of a row one by one, and with --nproc on as many ranks: a table of losses and\n"
     "gradient norms, whole and by group; 65 where one is off.",
     true, "--trace"},
    {"plan", verb_plan, "memory, bytes between ranks, predicted time of a step, before it is run",
     "[-c FILE | --model.path DIR] [--device NAME] [--measured FILE] [--sweep RANKS] "
     "[--documents L,L,..] [--grids TxHxW,..]",
     "Without rows: parameters and memory of a rank, bytes between ranks, FLOPs, and the "
     "predicted\n"
     "time and MFU of a step, by rates shipped for the H200 or those of --measured FILE (trainer\n"
     "bench ops --rates FILE). Memory is that of --device: h100, h200, b200, cpu, or a GPU's "
     "bytes;\n"
     "without it of the GPU that is here, or else an H200's; with training.backend cpu that of "
     "this\n"
     "machine. --sweep: layouts of that many ranks, fastest predicted first, each\n"
     "with the largest micro-batch that fits. With --documents (lengths) and --grids (in "
     "patches):\n"
     "the FLOPs of that batch by component, head at every position, nothing frozen.",
     true, NULL},
    {"probe", verb_probe, "logits, loss and every gradient of one row",
     "--model DIR --batch F.safetensors --out G.safetensors [--aux COEF]",
     "One forward and backward of a row (prepd sample writes one). G holds these tensors, all "
     "F32:\n"
     "logits [T, V]; loss, of the tokens alone, the mean over targets; aux_loss, the routers' "
     "auxiliary\n"
     "loss, not multiplied by COEF; and for every tensor NAME of the folder grad.NAME, the "
     "gradient\n"
     "of loss + COEF aux_loss.\n"
     "COEF is 0 unless given, whatever config.json says.",
     false, NULL},
    {"export", verb_export, "a Hugging Face folder, written again",
     "--model DIR --out DIR [--layout published|v5|per-expert] [--dtype bf16|f32] [--shard-bytes "
     "N]",
     "Load a Hugging Face folder and write it again, checked. Without options every tensor, file "
     "and\n"
     "the index stay as they are. --layout: how experts are stored; published is [E, in, out], for "
     "a\n"
     "text-only model per expert; v5 is [E, out, in]. --shard-bytes cuts new files.",
     false, NULL},
    {"bench", verb_bench, "every op, whole steps or memory, measured beside what the device can",
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
     "memory: what training.steps steps take of the device's memory, each part beside its plan.",
     true, NULL},
    {"inspect", verb_inspect, "tensors and counts of a preset or folder", "[NAME|DIR]",
     "Tensors, shapes, groups and counts of a preset or folder; without one, the presets' names.\n"
     "On a folder with weights also what is missing, extra or misshapen.",
     false, NULL},
};

int main(int argc, char **argv)
{
    const program p = {.name = "trainer",
                       .purpose = "trains Qwen3-VL mixture-of-experts models",
                       .verbs = verbs,
                       .n = sizeof verbs / sizeof *verbs,
                       .trainer = true};
    return program_run(&p, argc, argv);
}
