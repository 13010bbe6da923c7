/* SPDX-License-Identifier: Apache-2.0 */
/* cost_print.c: what `trainer plan` says of a step's cost. */
#include <inttypes.h>
#include <stdio.h>

#include "trainer/plan/row_work.h"
#include "trainer/plan/cost.h"

/* Prints the line of a part. A time too short for one decimal is "<0.1", not 0. */
static void print_part(FILE *to, const char *name, double seconds, double step)
{
    char ms[32] = "<0.1";
    if (seconds <= 0 || seconds * 1e3 >= 0.05)
        snprintf(ms, sizeof ms, "%.1f", seconds * 1e3);
    fprintf(to, "  %-26s %10s ms %5.1f %%\n", name, ms, 100.0 * seconds / step);
}

/* Prints how fast questions are trained on, and what sharing saves. */
static void print_pairs(FILE *to, const cost *price)
{
    fprintf(to, "  %-26s %10.1f pairs/s of all ranks, %#.3g TFLOP each", "questions with answers",
            price->pairs_per_s, price->pair_flops * 1e-12);
    if (price->row.questions > 1)
        fprintf(to, ", %.2f times fewer than with data.group none", price->saving);
    fputs("\n", to);
    if (price->epoch_pairs > 0)
        fprintf(to, "  %-26s %10.1f min, %.0f steps for its %" PRId64 " training questions\n",
                "one epoch of VQAv2", price->epoch / 60, price->epoch / price->step,
                price->epoch_pairs);
    if (price->unknown_shares)
        fprintf(to, "  how many samples share a picture is not known here, so none is counted as "
                    "shared; prepd plan prints it\n");
}

static void print_row(FILE *to, const row_kind *row)
{
    const bool single = row->seq_len < 2 * row->document;
    fprintf(to, "rows of %s of %" PRId64 " tokens", single ? "one document" : "documents",
            row->document);
    if (row->prefix > 0)
        fprintf(to, ", of which %" PRId64 " are stored once for every %.2f documents,", row->prefix,
                row->questions);
    if (row->grid[0] > 0)
        fprintf(to, " with a picture of %dx%dx%d patches%s", row->grid[0], row->grid[1],
                row->grid[2],
                row->questions > 1 ? ", shared"
                : single           ? ""
                                   : " each");
}

static void print_flops(FILE *to, const cost *price)
{
    const struct {
        const char *name;
        int64_t count;
    } work[] = {
        {"text linear", price->flops.text_linear - price->flops.text_experts},
        {"experts", price->flops.text_experts},
        {"text attention", price->flops.text_attention},
        {"head, at targets", price->flops.head},
        {"vision", price->flops.patch_embed + price->flops.vision_blocks + price->flops.mergers},
        {"vision attention", price->flops.vision_attention},
        {"training, useful", price->flops.training},
        {"recomputed, not useful", price->recomputed}};
    fprintf(to, "; FLOPs of a step, forward:\n");
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        fprintf(to, "  %-26s %24" PRId64 "\n", work[i].name, work[i].count);
    if (price->adapter_flops > 0)
        fprintf(to, "  %-26s %24" PRId64 "\n", "adapters", price->adapter_flops);
}

static void print_traffic(FILE *to, const traffic *sent, int64_t world)
{
    static const double GIB = 1073741824.0;
    if (sent->bytes == 0)
        return;
    fprintf(to, "  %-26s %16" PRId64 " bytes %8.2f GiB over %s%d ranks", sent->name, sent->bytes,
            (double)sent->bytes / GIB, sent->ranks == world ? "all " : "", sent->ranks);
    if (sent->ranks < world)
        fprintf(to, " (%s)", mesh_group_name(sent->group));
    fputs(sent->between_nodes ? ", between nodes\n" : "\n", to);
}

/* Prints which kernels run attention's backward pass and, if it matters, what the other setting of
 * training.deterministic would give. */
static void print_determinism(FILE *to, const cost *price)
{
    static const double TOLD = 1.03;
    fprintf(to, "  attention backward: %s (text)", attention_kernels_name(price->text_backward));
    if (price->vision_attention > 0)
        fprintf(to, ", %s (vision)", attention_kernels_name(price->vision_backward));
    if (price->deterministic && price->step > TOLD * price->other_step)
        fprintf(
            to,
            "; giving the same bits in every run costs %.1f %% of the step, which takes %.1f ms "
            "with training.deterministic false",
            100.0 * (1.0 - price->other_step / price->step), price->other_step * 1e3);
    if (!price->deterministic && price->other_step > TOLD * price->step)
        fprintf(to, "; with training.deterministic true the step takes %.1f ms, %.1f %% more",
                price->other_step * 1e3, 100.0 * (price->other_step / price->step - 1.0));
    fputs("\n", to);
}

/* Says what moves between the host's memory and the device, and how much of that is hidden. */
static void print_host(FILE *to, const cost *price)
{
    static const double GIB = 1073741824.0;
    const double weights = price->host_forward + price->host_backward;
    if (price->host <= 0)
        return;
    fprintf(to, "  memory.host: ");
    if (price->host_moments > 0)
        fprintf(to, "%.2f GiB of moments are copied from the host for the update, and back%s",
                price->host_moments / GIB, weights > 0 ? ", " : "");
    if (weights > 0)
        fprintf(to, "%.2f GiB of frozen weights are copied for the forward and backward passes",
                weights / GIB);
    fprintf(to, "; this takes %.1f ms, of which %.1f ms are hidden by computing\n",
            price->host * 1e3, (price->host - price->host_exposed) * 1e3);
}

void cost_print_experts(bool untimed, FILE *to)
{
    if (untimed)
        fputs("  the experts' products use the portable kernel, which is slower than the rate "
              "assumed for them\n",
              to);
}

void cost_print(const cost *price, const layout *degrees, FILE *to)
{
    print_row(to, &price->row);
    print_flops(to, price);
    if (degrees->world > 1)
        fprintf(to, "bytes that a rank receives in a step:\n");
    for (int i = 0; i < TRAFFIC_KEYS && degrees->world > 1; i++)
        print_traffic(to, &price->traffic[i], degrees->world);
    fprintf(to, "predicted step of a rank, not measured:\n");
    print_part(to, "dense products", price->dense, price->step);
    print_part(to, "experts", price->experts, price->step);
    print_part(to, "text attention", price->attention, price->step);
    print_part(to, "vision attention", price->vision_attention, price->step);
    if (price->adapters > 0)
        print_part(to, "adapters", price->adapters, price->step);
    print_part(to, "element-wise", price->memory, price->step);
    print_part(to, "of these recomputed", price->recompute, price->step);
    print_part(to, "optimiser", price->update, price->step);
    print_part(to, "between ranks, not hidden", price->exposed, price->step);
    print_part(to, "pipeline bubble", price->bubble, price->step);
    if (price->host > 0)
        print_part(to, "host's memory, not hidden", price->host_exposed, price->step);
    fprintf(to, "  %-26s %10.1f ms, %.0f tokens/s per rank, mfu %.1f %%\n", "step",
            price->step * 1e3, price->tokens_per_s, 100.0 * price->mfu);
    print_host(to, price);
    print_determinism(to, price);
    cost_print_experts(price->untimed_experts, to);
    print_pairs(to, price);
}
