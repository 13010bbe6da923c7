/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the table of the trainer's verbs, with their help texts. common/program/verb.h reads the
 * command line and calls the verb; each verb has a file verbs_NAME.c here. */
#include "common/program/verb.h"
#include "trainer/cli/verbs.h"

/* What --help lists first. */
static const char *const training[] = {
    "model.path",
    "training.steps",
    "training.global_batch_size",
    "optimizer.lr",
    "training.local_batch_size",
    "job.dump_folder",
    "eval.enable",
    "checkpoint.enable",
    "prepd.endpoint",
    NULL,
};
static const char *const evaluating[] = {
    "model.path", "job.dump_folder", "checkpoint.load_step", "eval.generate",
    "eval.show",  "eval.page",       "prepd.endpoint",       NULL,
};
static const char *const repeating[] = {"job.dump_folder", "prepd.endpoint", NULL};
static const char *const comparing[] = {
    "model.path", "job.dump_folder", "training.global_batch_size", "prepd.endpoint", NULL,
};
static const char *const planning[] = {
    "model.path",
    "training.seq_len",
    "training.local_batch_size",
    "parallelism.world_size",
    "activation_checkpoint.mode",
    NULL,
};
static const char *const measuring[] = {
    "model.path", "training.seq_len", "training.local_batch_size", "training.steps", NULL,
};

static const verb verbs[] = {
    {.name = "train",
     .run = verb_train,
     .summary = "trains, evaluates at the end, keeps and exports the model",
     .usage = "-c FILE [--section.key VALUE ...] [--nproc N] [--profile]",
     .help = "Trains until training.steps are done or the stream ends. With eval.enable it\n"
             "evaluates at the end. With checkpoint.enable it keeps checkpoints to resume\n"
             "from and leaves the model as a Hugging Face folder in job.dump_folder; without\n"
             "it no model is kept. The rows come from prepd serve at prepd.endpoint, or from\n"
             "the recording feed.replay.\n"
             "--nproc N: starts the N ranks of the layout on this machine, each with a GPU\n"
             "of its own, or on CPUs with Open MPI's mpirun. Without it this process is the\n"
             "only rank, or one that torchrun, srun or mpirun has started.\n"
             "--profile: at the end prints where the time of a step goes, by the device's\n"
             "timestamps, and what rank 0 received from other ranks in its last step. Steps\n"
             "run without CUDA graphs and are slower.\n"
             "Options that change the rows (data, image, video, ..) must be as prepd serve\n"
             "has them; they are listed by prepd serve --help.",
     .options = true,
     .most_used = training},
    {.name = "eval",
     .run = verb_eval,
     .summary = "held-out loss and accuracy, and with images swapped",
     .usage = "-c FILE [--section.key VALUE ...] [--nproc N]",
     .help = "Measures held-out loss and accuracy, and the accuracy with images swapped. Needs\n"
             "prepd serve at prepd.endpoint. With the options of a run it evaluates its newest\n"
             "checkpoint in job.dump_folder, adapters beside their base, or that of\n"
             "checkpoint.load_step; with 0, without a checkpoint, or if the run began from\n"
             "another model.path, the weights of model.path. The first line says which.\n"
             "--nproc N: starts the N ranks of the layout and evaluates with all of them.",
     .options = true,
     .most_used = evaluating},
    {.name = "verify",
     .run = verb_verify,
     .summary = "runs steps again and compares them with the run's ledger",
     .usage = "-c FILE [--from STEP] [--to STEP] [--section.key VALUE ...]",
     .help = "Runs steps of a run again, from one of its checkpoints, and compares samples,\n"
             "loss and gradient norm with its ledger, bit for bit. Names the first step that\n"
             "differs and exits with 65. Writes nothing. Needs the same rows as the run, and\n"
             "the same options.\n"
             "--from STEP: the checkpoint to begin at; without it the oldest one, with 0 the\n"
             "start.\n"
             "--to STEP: the last step to compare; without it the last one of the ledger.",
     .options = true,
     .most_used = repeating},
    {.name = "check",
     .run = verb_check,
     .summary = "shows that settings do not change a step of your model",
     .usage = "-c FILE [--steps N] [--nproc N] [--section.key VALUE ...]",
     .help = "Runs the first N steps (default 2) of your model on your data on one rank, then\n"
             "again with other activation checkpointing, other micro-batches, other threads,\n"
             "resumed from a checkpoint, with the documents of a row one by one, and with\n"
             "--nproc on that many ranks. Prints how far losses and gradient norms, whole\n"
             "and by group, differ. Exits with 65 if any differs by more than rounding.",
     .options = true,
     .hidden = "--trace",
     .most_used = comparing},
    {.name = "plan",
     .run = verb_plan,
     .summary = "predicts the memory, the traffic and the time of a step",
     .usage = "[-c FILE | --model.path DIR] [--device NAME] [--measured FILE] "
              "[--sweep RANKS | --json] [--full]",
     .help = "Prints the parameters and the memory of a rank, the bytes between ranks, the\n"
             "FLOPs, and the predicted time and MFU of a step. Needs no rows and no GPU.\n"
             "--device NAME: the device to plan for: cpu, a GPU's memory in bytes, or one of\n"
             "h200, h100, b200, h200-nvl, h100-nvl, h100-pcie, a100, a100-40, l40s,\n"
             "rtx6000ada, a6000, rtx4090, rtx3090, a10g, l4. Without it the GPU of this\n"
             "machine, or an H200 if there is none; with training.backend cpu this machine's\n"
             "memory. Rates were measured on an H200; those of other cards follow from\n"
             "NVIDIA's datasheets, and a size in bytes takes the nearest card's.\n"
             "--measured FILE: predicts times from rates that trainer bench ops --rates FILE\n"
             "has measured.\n"
             "--sweep RANKS: lists the layouts of that many ranks, the fastest first, each\n"
             "with the largest micro-batch that fits.\n"
             "--full: prints every region of memory to the byte.\n"
             "--json: prints memory and time as JSON, for each mode of activation\n"
             "checkpointing; deploy/what-fits searches settings with it.",
     .options = true,
     .most_used = planning},
    {.name = "export",
     .run = verb_export,
     .summary = "writes a Hugging Face folder again, checked or converted",
     .usage =
         "--model DIR --out DIR [--layout published|v5|per-expert] [--dtype bf16|f32] "
         "[--shard-bytes N] [--overwrite] | [--merge] --model CHECKPOINT --out DIR [--base DIR] ..",
     .help = "Loads a Hugging Face folder, checks it and writes it again. Without options\n"
             "every tensor, every file and the index stay as they are.\n"
             "--model may be a checkpoint that has what was trained alone (step-N, or a\n"
             "folder of such, of which the newest is taken): writes the whole model. With\n"
             "--merge it is a checkpoint of adapters, which are merged into their base. The\n"
             "base must be the one it was trained on; --base says where it is now.\n"
             "--layout: how experts are stored. published is [experts, in, out], or one\n"
             "tensor per expert (per-expert) for a text-only model; v5 is [experts, out,\n"
             "in], which for a model with vision the 5 series of transformers opens. A\n"
             "layout that transformers would open with random experts is refused.\n"
             "--shard-bytes N: cuts the weights into new files of at most N bytes.\n"
             "--overwrite: writes even if --out is a folder that is not empty: files of the\n"
             "same names are replaced, and weights of an earlier export are removed.\n"
             "Until all is written it lies in .NAME.writing beside --out, or within --out if\n"
             "that exists, so an export that is interrupted changes nothing."},
    {.name = "bench",
     .run = verb_bench,
     .summary = "measures ops and steps against the device's limits",
     .usage =
         "ops [OP,OP..] [--seconds S] [--rates FILE [--overwrite]] | step [--layers N,N,..] "
         "[--ranks R] [--load L [--settle N]] [--document N] [--live] -c FILE | --model.path DIR",
     .help = "ops [OP,OP..]: times matrix products and attention, or these of their ops, at\n"
             "the model's shapes for training.local_batch_size rows of training.seq_len\n"
             "tokens, --seconds S each, and compares them with a large copy and a large\n"
             "matrix product measured in the same run.\n"
             "--rates FILE writes the file that trainer plan --measured reads; --overwrite\n"
             "replaces one that exists.\n"
             "step: times training.steps steps at each depth of --layers (0: all layers),\n"
             "fits a line through the depths, and projects it to the whole model, with the\n"
             "optimiser shared by --ranks R ranks, and prints the projection's error.\n"
             "Collectives are not counted. The rows come from feed.replay, or are text in\n"
             "documents of --document N tokens (0: whole rows). --load L biases the router\n"
             "until the busiest expert has L times the mean load, in at most --settle N (36)\n"
             "steps before those that are timed. --live takes the rows that prepd.endpoint\n"
             "streams, and prints how much they delay each step.",
     .options = true,
     .most_used = measuring},
    {.name = "inspect",
     .run = verb_inspect,
     .summary = "lists the tensors and counts of a preset or folder",
     .usage = "[NAME|DIR]",
     .help = "Lists the tensors, shapes, groups and counts of a preset or folder; without an\n"
             "argument, the names of the presets. For a folder with weights it also lists\n"
             "what is missing, extra or misshapen."},
};

int main(int argc, char **argv)
{
    const program self = {.name = "trainer",
                          .purpose = "trains Qwen3-VL mixture-of-experts models",
                          .verbs = verbs,
                          .count = sizeof verbs / sizeof *verbs,
                          .trainer = true};
    return program_run(&self, argc, argv);
}
