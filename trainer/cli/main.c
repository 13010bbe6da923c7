/* main.c: the table of the trainer's verbs, with their help texts. common/program/verb.h reads the
 * command line and calls the verb; each verb has a file verbs_NAME.c here. */
#include "common/program/verb.h"
#include "trainer/cli/verbs.h"

static const verb verbs[] = {
    {"train", verb_train, "trains, evaluates at the end, keeps and exports the model",
     "-c FILE [--section.key VALUE ...] [--nproc N] [--dry-run [--device NAME]] "
     "[--profile]",
     "Trains until training.steps are done or the stream ends. With eval.enable it evaluates at\n"
     "the end. With checkpoint.enable it keeps checkpoints to go on from and leaves the model as\n"
     "a Hugging Face folder in job.dump_folder; without it no model is kept. The rows come from\n"
     "prepd serve at prepd.endpoint, or from the recording feed.replay.\n"
     "--nproc N: starts the N ranks of the layout on this machine, each with a GPU of its own, or\n"
     "on CPUs with Open MPI's mpirun. Without it this process is the only rank, or one that\n"
     "torchrun, srun or mpirun has started.\n"
     "--dry-run: runs all ranks of the layout with shapes alone and compares them with trainer\n"
     "plan: who stores and reads what, the calls and bytes of a step, the files of a checkpoint.\n"
     "It needs neither rows nor GPUs. The ranks are planned for an H200, or for the GPU that\n"
     "--device names (see trainer plan --help). With --nproc each rank is a process of its own,\n"
     "and a library that moves nothing stands in for NCCL.\n"
     "--profile: at the end prints where the time of a step goes, by the device's timestamps.",
     true, NULL},
    {"eval", verb_eval, "held-out loss and accuracy of a model, and with images swapped",
     "-c FILE [--section.key VALUE ...] [--nproc N]",
     "Measures the held-out loss and accuracy of model.path, which must have weights, and the\n"
     "accuracy with images swapped. Needs prepd serve at prepd.endpoint.\n"
     "--nproc N: starts the N ranks of the layout and evaluates with all of them.",
     true, NULL},
    {"verify", verb_verify, "runs steps again and compares them with the run's ledger",
     "-c FILE [--from STEP] [--to STEP] [--section.key VALUE ...]",
     "Runs steps of a run again, from one of its checkpoints, and compares samples, loss and\n"
     "gradient norm with its ledger, bit for bit. Names the first step that differs and exits\n"
     "with 65. Writes nothing. Needs the same rows as the run.\n"
     "--from STEP: the checkpoint to begin at; without it the oldest one, with 0 the start.\n"
     "--to STEP: the last step to compare; without it the last one of the ledger.",
     true, NULL},
    {"check", verb_check, "shows on your own model and rows that settings do not change a step",
     "-c FILE [--steps N] [--nproc N] [--section.key VALUE ...]",
     "Runs the first N steps (2) of your own model and data on one rank, and then again with "
     "other\n"
     "activation checkpointing, other micro-batches, other threads, resumed from a checkpoint,\n"
     "with the documents of a row one by one, and with --nproc on that many ranks. Prints how far\n"
     "losses and gradient norms, whole and by group, differ. Exits with 65 if any differs by more\n"
     "than rounding.",
     true, "--trace"},
    {"plan", verb_plan, "predicts the memory, the bytes between ranks and the time of a step",
     "[-c FILE | --model.path DIR] [--device NAME] [--measured FILE] [--sweep RANKS] "
     "[--documents L,L,..] [--grids TxHxW,..]",
     "Prints the parameters and the memory of a rank, the bytes between ranks, the FLOPs, and the\n"
     "predicted time and MFU of a step. Needs no rows and no GPU.\n"
     "--device NAME: the device to plan for: h100, h200, b200, cpu, or the bytes of a GPU. "
     "Without\n"
     "it the GPU of this machine, or an H200 where there is none; with training.backend cpu this\n"
     "machine's memory.\n"
     "--measured FILE: predicts times from rates that trainer bench ops --rates FILE has "
     "measured,\n"
     "instead of those shipped for the H200.\n"
     "--sweep RANKS: lists the layouts of that many ranks, the fastest first, each with the\n"
     "largest micro-batch that fits.\n"
     "--documents and --grids: print only the FLOPs of a batch of documents with these lengths "
     "and\n"
     "images with these grids in patches, by component, with the head at every position and\n"
     "nothing frozen.",
     true, NULL},
    {"probe", verb_probe, "writes the logits, the loss and every gradient of one row",
     "--model DIR --batch F.safetensors --out G.safetensors [--aux COEF]",
     "Runs one forward and one backward pass of a row, which prepd sample writes. G receives\n"
     "these tensors, all F32: logits [tokens, vocabulary]; loss, the mean over targets without\n"
     "the auxiliary loss; aux_loss, the auxiliary loss of the routers, not multiplied by COEF;\n"
     "and for every tensor NAME of the folder grad.NAME, the gradient of loss + COEF aux_loss.\n"
     "COEF is 0 unless given, whatever config.json says.",
     false, NULL},
    {"export", verb_export, "writes a Hugging Face folder again, checked or in another form",
     "--model DIR --out DIR [--layout published|v5|per-expert] [--dtype bf16|f32] [--shard-bytes "
     "N]",
     "Loads a Hugging Face folder, checks it and writes it again. Without options every tensor,\n"
     "every file and the index stay as they are.\n"
     "--layout: how experts are stored. published is [experts, in, out], or one tensor per expert\n"
     "for a text-only model; v5 is [experts, out, in].\n"
     "--shard-bytes N: cuts the weights into new files of at most N bytes.",
     false, NULL},
    {"bench", verb_bench, "measures ops, whole steps or memory against the device's own limits",
     "ops [OP] [--rates FILE] [--count] | step [--layers N,N,..] [--ranks R] [--load L] [--live] | "
     "memory [--layers N] -c FILE | --model.path DIR",
     "ops [OP]: times every op, or one, at the model's shapes for training.local_batch_size rows\n"
     "of training.seq_len tokens, and compares it with a large copy and a large matrix product\n"
     "measured in the same run (--seconds S for each line). --rates FILE writes the file that\n"
     "trainer plan --measured reads. --count uses no device: it prints the bytes and FLOPs of "
     "each\n"
     "line in bf16, and the least time that the limits of an H200 allow.\n"
     "step: times training.steps steps at each depth of --layers (0: all layers), fits a line\n"
     "through the depths, and projects it to the whole model, with the optimiser shared by\n"
     "--ranks R ranks. The rows come from feed.replay, or are text in documents of bench.document\n"
     "tokens. --load L biases the router until the busiest expert has L times the mean load.\n"
     "--live takes the rows that prepd.endpoint streams, and prints how much they delay each "
     "step.\n"
     "memory: prints what training.steps steps take of the device's memory, each part beside its\n"
     "plan.",
     true, NULL},
    {"inspect", verb_inspect, "lists the tensors and counts of a preset or folder", "[NAME|DIR]",
     "Lists the tensors, shapes, groups and counts of a preset or folder; without an argument, "
     "the\n"
     "names of the presets. For a folder with weights it also lists what is missing, extra or\n"
     "misshapen.",
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
