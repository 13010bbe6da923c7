/* SPDX-License-Identifier: Apache-2.0 */
/* rates.c: the shipped rates of the H200, and the reader and writer of rate files. */
#include "trainer/plan/rates.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/conf/yaml.h"
#include "trainer/device/choices.h"

static const double GIB = 1073741824.0;

/* The shipped rates, rounded. What one card does alone was measured by bench ops on one H200, at
 * the shapes of a step and for seconds on end, while the card held its power at its limit. What
 * several cards do others have published, and of two figures it is the lower. time.md has the
 * sources. */
static const struct {
    const char *name;
    double unit, h200; /* h200: in that unit */
    rate_kind kind;
    const char *from;
} keys[RATE_KEYS] = {
    {"dense_tflops", 1e12, 666, RATE_MEASURED,
     "one H200 at its power limit: all dense products of a step, forward and backward "
     "(published: 747)"},
    {"experts_tflops", 1e12, 596, RATE_MEASURED,
     "one H200 at its power limit: 128 experts of 2048 x 768, 8 for each of 49,152 tokens, the "
     "fullest with 3 times the mean, forward and backward (published: 413)"},
    {"attention_forward_tflops", 1e12, 562, RATE_MEASURED,
     "one H200: cuDNN 9.19, 4 rows of 12,288 tokens, 32 heads of 128 on 4 (published: 644)"},
    {"attention_backward_tflops", 1e12, 385, RATE_MEASURED, "one H200: cuDNN 9.19, the same rows"},
    {"attention_any_order_tflops", 1e12, 481, RATE_MEASURED,
     "one H200: cuDNN 9.19, the same rows (published: 541)"},
    {"vision_attention_forward_tflops", 1e12, 269, RATE_MEASURED,
     "one H200: cuDNN 9.19, head 72, frames of 1,200 patches (published: 320)"},
    {"vision_attention_backward_tflops", 1e12, 211, RATE_MEASURED,
     "one H200: cuDNN 9.19, the same frames"},
    {"vision_attention_any_order_tflops", 1e12, 246, RATE_MEASURED,
     "one H200: cuDNN 9.19, the same frames"},
    {"own_attention_tflops", 1e12, 173, RATE_MEASURED,
     "one H200: our own kernels, backward, 4 rows of 12,288 tokens, 32 heads of 128 on 4"},
    {"own_vision_attention_tflops", 1e12, 118, RATE_MEASURED,
     "one H200: our own kernels, backward, head 72, frames of 1,200 patches"},
    {"copy_gbs", 1e9, 4237, RATE_MEASURED,
     "one H200: device copy, read and written both counted (published: 4010)"},
    {"link_gbs", 1e9, 337, RATE_PUBLISHED,
     "H200: NCCL 2.29.2, all gather and reduce scatter of 512 MiB by 8 in a node "
     "(ai-dynamo/aiconfigurator)"},
    {"network_gbs", 1e9, 45.6, RATE_PUBLISHED,
     "H200: an eighth of a ring all reduce of 4 GiB by 4 nodes of 8, 400 Gbit/s per GPU "
     "(stas00/ml-engineering, network)"},
    {"host_gbs", 1e9, 50, RATE_ASSUMED, "pinned memory over PCIe 5.0 x16, whose rate is 63"},
    {"peak_tflops", 1e12, 989, RATE_NOMINAL, "H200: dense bf16, NVIDIA's figure"},
};

const char *rate_name(rate_key key)
{
    return keys[key].name;
}

rates rates_h200(void)
{
    rates speeds = {.per_node = 8, .sm = 90, .source = "shipped for the H200"};
    for (int k = 0; k < RATE_KEYS; k++) {
        speeds.of[k] = keys[k].h200 * keys[k].unit;
        speeds.kind[k] = keys[k].kind;
        speeds.from[k] = keys[k].from;
    }
    return speeds;
}

static void assume_rate(rates *inout, rate_key key, double value)
{
    inout->of[key] = value;
    inout->kind[key] = RATE_ASSUMED;
    inout->from[key] = "in proportion to NVIDIA's datasheets";
}

/* The H200's rates in proportion to NVIDIA's figures for the two. cuDNN's attention is not used on
 * a card before compute capability 9.0. */
static void assume_rates(rates *inout, const gpu_card *card)
{
    const gpu_card *h200 = gpu_card_named("h200");
    const double faster = card->peak / h200->peak;
    for (int k = RATE_DENSE; k <= RATE_OWN_VISION_ATTENTION; k++)
        assume_rate(inout, (rate_key)k, inout->of[k] * faster);
    for (int k = RATE_ATTENTION; k <= RATE_VISION_ATTENTION_ANY_ORDER && card->sm < CHOICE_CUDNN_SM;
         k++)
        inout->of[k] =
            inout->of[k < RATE_VISION_ATTENTION ? RATE_OWN_ATTENTION : RATE_OWN_VISION_ATTENTION];
    assume_rate(inout, RATE_COPY, inout->of[RATE_COPY] * card->memory / h200->memory);
    assume_rate(inout, RATE_LINK, card->link);
    assume_rate(inout, RATE_HOST, card->host);
    inout->of[RATE_PEAK] = card->peak;
    inout->from[RATE_PEAK] = "dense bf16, NVIDIA's datasheet";
}

rates rates_of(const gpu_card *card)
{
    const double memory = card->memory / gpu_card_named("h200")->memory;
    rates speeds = rates_h200();
    speeds.sm = card->sm;
    if (!card->measured) {
        assume_rates(&speeds, card);
        snprintf(speeds.source, sizeof speeds.source,
                 "none measured for the %s: those of the H200 in proportion to NVIDIA's datasheets",
                 card->name);
    } else if (memory != 1.0) {
        assume_rate(&speeds, RATE_COPY, speeds.of[RATE_COPY] * memory);
        snprintf(speeds.source, sizeof speeds.source,
                 "shipped for the H200, whose chip the %s has; copies in proportion to memory",
                 card->name);
    }
    return speeds;
}

typedef struct reading {
    const char *path;
    rates *speeds;
    bool *given; /* [RATE_KEYS] the file has this key itself */
} reading;

static status read_number(const reading *in, const yaml_item *item, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(item->text, &end);
    if (item->is_list || item->is_null || end == item->text || *end || errno || !isfinite(value) ||
        value <= 0)
        return FAIL(ST_CONFIG, "%s:%lld: %s: expected a number above 0, got \"%s\"", in->path,
                    (long long)item->line, item->key, item->text ? item->text : "");
    *out = value;
    return ST_OK;
}

static status take_rate(void *user, const yaml_item *item)
{
    const reading *in = user;
    double value;
    if (strcmp(item->key, "source") == 0) {
        snprintf(in->speeds->source, sizeof in->speeds->source, "%s", item->text ? item->text : "");
        return ST_OK;
    }
    for (int k = 0; k < RATE_KEYS; k++) {
        if (strcmp(item->key, keys[k].name) != 0)
            continue;
        TRY(read_number(in, item, &value));
        in->given[k] = true;
        in->speeds->of[k] = value * keys[k].unit;
        in->speeds->kind[k] = k == RATE_PEAK ? RATE_NOMINAL : RATE_MEASURED;
        in->speeds->from[k] = NULL;
        return ST_OK;
    }
    if (strcmp(item->key, "memory_gib") == 0) {
        TRY(read_number(in, item, &value));
        in->speeds->memory = value * GIB;
        return ST_OK;
    }
    if (strcmp(item->key, "ranks_per_node") == 0) {
        TRY(read_number(in, item, &value));
        if (value != floor(value) || value > 1024)
            return FAIL(ST_CONFIG, "%s:%lld: ranks_per_node: expected 1 to 1024, got \"%s\"",
                        in->path, (long long)item->line, item->text);
        in->speeds->per_node = (int)value;
        return ST_OK;
    }
    char known[512] = "";
    for (int k = 0; k < RATE_KEYS; k++) {
        size_t length = strlen(known);
        snprintf(known + length, sizeof known - length, "%s, ", keys[k].name);
    }
    return FAIL(ST_CONFIG,
                "%s:%lld: there is no rate named %s; the keys are %smemory_gib, ranks_per_node, "
                "source",
                in->path, (long long)item->line, item->key, known);
}

status rates_read(const char *path, rates *out)
{
    *out = rates_h200();
    bool given[RATE_KEYS] = {false};
    reading in = {path, out, given};
    snprintf(out->source, sizeof out->source, "%s", path);
    return yaml_read(path, take_rate, NULL, &in);
}

void rates_write(const rates *speeds, FILE *to)
{
    fprintf(to, "# Rates of this machine, for trainer plan --measured FILE.\nsource: \"%s\"\n",
            speeds->source);
    for (int k = 0; k < RATE_KEYS; k++)
        if (speeds->kind[k] == RATE_MEASURED)
            fprintf(to, "%s: %.6g\n", keys[k].name, speeds->of[k] / keys[k].unit);
}

void rates_print(const rates *speeds, FILE *to)
{
    static const char *const kind[] = {[RATE_ASSUMED] = "assumed",
                                       [RATE_PUBLISHED] = "published",
                                       [RATE_NOMINAL] = "nominal",
                                       [RATE_MEASURED] = "measured"};
    fprintf(to, "rates (%s):\n", escape_text(speeds->source).text);
    for (int k = 0; k < RATE_KEYS; k++)
        fprintf(to, "  %-33s %10.2f %s%s%s\n", keys[k].name, speeds->of[k] / keys[k].unit,
                kind[speeds->kind[k]], speeds->from[k] ? ", " : "",
                speeds->from[k] ? speeds->from[k] : "");
}
