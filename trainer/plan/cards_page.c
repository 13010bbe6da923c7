/* cards_page.c: the cards, the models and what is trained, and the tables of what was found. */
#include "trainer/plan/cards_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/visible.h"
#include "trainer/device/choices.h"
#include "trainer/device/experts_choice.h"
#include "trainer/plan/card_fit.h"

static const double GIB = 1073741824.0;

/* Cards of 24 and 48 GB differ in what their drivers offer: the least is taken, with the rates of
 * an RTX 4090 and of an L40S. */
static const struct {
    const char *name, *device;
} cards[] = {{"24 GB", "24000000000"},
             {"48 GB", "48000000000"},
             {"80 GB", "h100"},
             {"141 GB", "h200"},
             {"180 GB", "b200"}};

static const char *const published[] = {"qwen3-vl-2b",  "qwen3-vl-4b",      "qwen3-vl-8b",
                                        "qwen3-vl-32b", "qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b"};

/* clang-format off */
#define SMALL_MOMENTS {"optimizer.states", "int8"}
#define SMALL_MASTERS {"training.master", "bf16"}
#define IN_BACKWARD {"optimizer.in_backward", "true"}
#define ON_HOST {"memory.host", "moments"}
#define ALL_ON_HOST {"memory.host", "both"}
#define RANK {"lora.rank", "16"}
#define ATTENTION "q_proj,k_proj,v_proj,o_proj"
#define ON_ATTENTION {"lora.targets", ATTENTION}
#define ON_EXPERTS {"lora.targets", ATTENTION ",gate_up_proj,down_proj"}
#define ON_MLP {"lora.targets", ATTENTION ",gate_proj,up_proj,down_proj"}
#define IN_NF4 {"lora.base", "nf4"}
#define SAVINGS(list) list, sizeof list / sizeof *list

static const card_saving of_adapters[] = {
    {"", {{0}}},
    {"int8", {SMALL_MOMENTS}},
    {"int8, host", {SMALL_MOMENTS, ALL_ON_HOST}}};
static const card_saving of_all[] = {
    {"", {{0}}},
    {"int8", {SMALL_MOMENTS}},
    {"int8, bf16", {SMALL_MOMENTS, SMALL_MASTERS}},
    {"int8, bf16, backward", {SMALL_MOMENTS, SMALL_MASTERS, IN_BACKWARD}},
    {"int8, bf16, backward, host", {SMALL_MOMENTS, SMALL_MASTERS, IN_BACKWARD, ON_HOST}}};

static const card_method methods[] = {
    {"LoRA, attention", {RANK, ON_ATTENTION}, {RANK, ON_ATTENTION}, SAVINGS(of_adapters)},
    {"LoRA, all matrices", {RANK, ON_EXPERTS}, {RANK, ON_MLP}, SAVINGS(of_adapters)},
    {"QLoRA, attention", {RANK, ON_ATTENTION, IN_NF4}, {RANK, ON_ATTENTION, IN_NF4},
     SAVINGS(of_adapters)},
    {"QLoRA, all matrices", {RANK, ON_EXPERTS, IN_NF4}, {RANK, ON_MLP, IN_NF4}, SAVINGS(of_adapters)},
    {"all parameters", {{0}}, {{0}}, SAVINGS(of_all)}};
/* clang-format on */

enum {
    CARDS = sizeof cards / sizeof *cards,
    MODELS = sizeof published / sizeof *published,
    METHODS = sizeof methods / sizeof *methods
};

/* All cells of a model. */
typedef struct model_fits {
    model_dims dims;
    card_fit of[METHODS][CARDS];
} model_fits;

static status find_all(const conf *options, const plan_device card[CARDS], model_fits *inout)
{
    for (int i = 0; i < METHODS; i++)
        for (int j = 0; j < CARDS; j++)
            TRY(card_fit_find(options, &inout->dims, &methods[i], &card[j], &inout->of[i][j]));
    return ST_OK;
}

static void print_heading(const conf *options, FILE *to)
{
    fprintf(
        to,
        "# What fits on which card\n\n"
        "<!-- Made by `trainer plan --cards --memory.limit %g`. Do not edit. -->\n\n"
        "These are plans and predictions, not measurements, made by the code with which a run "
        "refuses what does not fit.\n`trainer plan --cards --model.path DIR` prints this page for "
        "your own model. Rows hold documents of 313 tokens, each with a\npicture of 640 x 480 "
        "pixels, and there is memory for as many patches as a row may have. Adapters have rank "
        "16; those of QLoRA\nare trained beside a base in 4 bits (`lora.base: nf4`). A run may use "
        "%.0f %% of a card (`memory.limit`).\n\n"
        "A cell gives the rows of a micro-batch and their length in tokens, and the options that "
        "save memory, if rows of that length need\nthem:\n\n"
        "- *int8*: `optimizer.states: int8`;\n"
        "- *bf16*: `training.master: bf16`;\n"
        "- *backward*: `optimizer.in_backward: true`; a step is then one micro-batch on each "
        "card. Otherwise it has %d rows;\n"
        "- *host*: `memory.host: moments`, or with adapters `both`, which keeps the base on the "
        "host too; it crosses PCIe in every step.\n\n"
        "What does not fit on one card with rows of %d tokens or more is tried on 2, 4, .. %d "
        "cards (`parallelism.data_parallel_shard_degree`;\n*experts*: "
        "`parallelism.expert_parallel_degree`). What one card lacks is the memory that is "
        "missing for rows of %d tokens\nwith all of these options.\n\n",
        options->memory_limit, options->memory_limit * 100.0, CARD_STEP_ROWS, CARD_SEQ_LEN_LEAST,
        CARDS_MOST, CARD_SEQ_LEN_LEAST);
}

static void print_settings(const card_fit *fit, FILE *to)
{
    if (fit->cards > 1)
        fprintf(to, "%" PRId64 " cards: ", fit->cards);
    fprintf(to, "%" PRId64 " x %" PRId64 "%s%s", fit->rows, fit->seq_len,
            fit->saving->name[0] ? ", " : "", fit->saving->name);
}

static void print_overview_cell(const card_fit *fit, FILE *to)
{
    fputs(" ", to);
    if (fit->cards == 0)
        fprintf(to, "more than %d cards", CARDS_MOST);
    else
        print_settings(fit, to);
    fputs(" |", to);
}

static void print_overview(const plan_device card[CARDS], const model_fits *models, int count,
                           FILE *to)
{
    fprintf(to, "| model | trained |");
    for (int j = 0; j < CARDS; j++)
        fprintf(to, " %s: %.1f GiB |", cards[j].name, card[j].memory / GIB);
    fprintf(to, "\n|---|---|");
    for (int j = 0; j < CARDS; j++)
        fprintf(to, "---|");
    for (int k = 0; k < count; k++)
        for (int i = 0; i < METHODS; i++) {
            fprintf(to, "\n| %s | %s |", i ? "" : escape_text(models[k].dims.name).text,
                    methods[i].name);
            for (int j = 0; j < CARDS; j++)
                print_overview_cell(&models[k].of[i][j], to);
        }
    fprintf(to, "\n");
}

/* The settings in full; and what one card lacks, if it is not enough. */
static void print_choice(const card_fit *fit, FILE *to)
{
    static const char *const modes[] = {
        [AC_NONE] = "none", [AC_SELECTIVE] = "op", [AC_FULL] = "full"};
    if (fit->lacking)
        fprintf(to, "one card lacks %.1f GiB; ", (double)fit->lacking / GIB);
    if (fit->cards == 0) {
        fprintf(to, "more than %d cards | | | | | |\n", CARDS_MOST);
        return;
    }
    print_settings(fit, to);
    if (fit->experts > 1)
        fprintf(to, ", experts %" PRId64, fit->experts);
    fprintf(to, " | %s | %.1f | %.1f |", modes[fit->mode], (double)fit->total / GIB,
            (double)fit->host / GIB);
}

static void print_rates(const card_fit *fit, const gpu_card *card, FILE *to)
{
    const char *about = card->measured ? "" : "~";
    if (fit->cards)
        fprintf(to, " %s%.0f | %s%.0f %% |\n", about, fit->tokens_per_s, about, fit->mfu * 100.0);
}

static void print_model(const plan_device card[CARDS], const model_fits *fits, FILE *to)
{
    fprintf(to,
            "\n## %s\n\n| trained | card | fits with | recomputed | GiB of a card | GiB of the "
            "host for each card | tokens/s of a card | MFU |\n|---|---|---|---|---|---|---|---|\n",
            escape_text(fits->dims.name).text);
    for (int i = 0; i < METHODS; i++)
        for (int j = 0; j < CARDS; j++) {
            fprintf(to, "| %s | %s | ", j ? "" : methods[i].name, cards[j].name);
            print_choice(&fits->of[i][j], to);
            print_rates(&fits->of[i][j], card[j].card, to);
        }
}

enum { NAMES_TEXT = 64 };

static void append_name(char names[NAMES_TEXT], const char *name)
{
    const size_t length = strlen(names);
    snprintf(names + length, NAMES_TEXT - length, "%s%s", length ? ", " : "", name);
}

/* Which of the cards do not run what was timed on Hopper. */
static status print_kernels(const conf *options, const plan_device card[CARDS], FILE *to)
{
    char portable[NAMES_TEXT] = "", own[NAMES_TEXT] = "";
    for (int j = 0; j < CARDS; j++) {
        bool hopper;
        TRY(experts_choose((int)options->training_experts, card[j].sm, &hopper));
        if (!hopper)
            append_name(portable, cards[j].name);
        if (card[j].sm < CHOICE_CUDNN_SM)
            append_name(own, cards[j].name);
    }
    fprintf(to,
            "\nOn cards of %s the experts' products run on the portable kernel, which has not been "
            "timed on any card and is slower\nthan the rate assumed here. On cards of %s attention "
            "runs on our own kernels, since cuDNN is not used there.\n",
            portable, own);
    return ST_OK;
}

static status print_tables(const conf *options, const plan_device card[CARDS],
                           const model_fits *models, int count, FILE *to)
{
    print_overview(card, models, count, to);
    fputs(
        "\nBelow, *recomputed* is `activation_checkpoint.mode`, where `op` keeps as much as fits. "
        "The "
        "host's memory is that of a run with\ncheckpoints; most of it is for their two copies in "
        "memory (`checkpoint.memory_folder`). Times are predicted from the rates of an\nH100 and "
        "an H200; those marked *~* from rates that nobody has measured, those of an H200 scaled by "
        "the makers' figures for an\nRTX 4090, an L40S and a B200. Runs to start from: "
        "[LoRA of 30B-A3B on one H200](vqav2-30b-lora.yaml),\n"
        "[QLoRA of it on 24 GB](vqav2-30b-qlora.yaml), all of it [on one "
        "H200](vqav2-30b-one-h200.yaml) and [on one H100](vqav2-30b-one-h100.yaml), all "
        "of 235B-A22B\n[on eight H200](vqav2-235b-8-h200.yaml), with everything on the cards.\n",
        to);
    TRY(print_kernels(options, card, to));
    for (int k = 0; k < count; k++)
        print_model(card, &models[k], to);
    return ST_OK;
}

status cards_page_write(const conf *options, const model_dims *dims, FILE *to)
{
    const int count = dims ? 1 : MODELS;
    model_fits *models = calloc((size_t)count, sizeof *models);
    plan_device card[CARDS];
    status st = models ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for what fits on which card");
    for (int j = 0; j < CARDS && st == ST_OK; j++)
        st = plan_device_named(cards[j].device, &card[j]);
    print_heading(options, to);
    for (int k = 0; k < count && st == ST_OK; k++) {
        if (dims)
            models[k].dims = *dims;
        else
            st = dims_preset(published[k], &models[k].dims);
        if (st == ST_OK)
            st = find_all(options, card, &models[k]);
    }
    if (st == ST_OK)
        st = print_tables(options, card, models, count, to);
    free(models);
    return st;
}
