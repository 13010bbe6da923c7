#include "trainer/plan/rates.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/yaml.h"

static const double TERA = 1e12, GIGA = 1e9, GIB = 1073741824.0;

static const struct {
    const char *name;
    double unit;
} keys[RATE_KEYS] = {
    {"dense_tflops", 1e12},     {"experts_tflops", 1e12},
    {"attention_tflops", 1e12}, {"vision_attention_tflops", 1e12},
    {"copy_gbs", 1e9},          {"link_gbs", 1e9},
    {"network_gbs", 1e9},       {"peak_tflops", 1e12},
};

const char *rate_name(rate_key k)
{
    return keys[k].name;
}

double rate_unit(rate_key k)
{
    return keys[k].unit;
}

rates rates_h200(void)
{
    /* One H200: 769 to 798 TFLOP/s in a product of 8192^3 on random bf16 data, 4.3 TB/s copied. A
     * step's products are smaller than that one, so they are taken at nine tenths of it; experts at
     * eight tenths of a dense product, attention at about half, as good kernels are known to run.
     * Links: NVLink 4 and a 400 Gbit/s adapter per GPU, at four fifths of their nominal rate. */
    rates r = {.of = {[RATE_DENSE] = 700 * TERA,
                      [RATE_EXPERTS] = 560 * TERA,
                      [RATE_ATTENTION] = 400 * TERA,
                      [RATE_VISION_ATTENTION] = 300 * TERA,
                      [RATE_COPY] = 4300 * GIGA,
                      [RATE_LINK] = 360 * GIGA,
                      [RATE_NETWORK] = 40 * GIGA,
                      [RATE_PEAK] = 989 * TERA},
               .memory = 139.7 * GIB,
               .per_node = 8};
    r.measured[RATE_COPY] = true;
    snprintf(r.source, sizeof r.source, "shipped for the H200");
    return r;
}

typedef struct reading {
    const char *path;
    rates *r;
} reading;

static status read_number(const reading *in, const yaml_item *item, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(item->text, &end);
    if (item->is_list || item->is_null || end == item->text || *end || errno || !isfinite(v) ||
        v <= 0)
        return FAIL(ST_CONFIG, "%s:%lld: %s: expected a number above 0, got \"%s\"", in->path,
                    (long long)item->line, item->key, item->text ? item->text : "");
    *out = v;
    return ST_OK;
}

static status take(void *user, const yaml_item *item)
{
    const reading *in = user;
    double v;
    if (strcmp(item->key, "source") == 0) {
        snprintf(in->r->source, sizeof in->r->source, "%s", item->text ? item->text : "");
        return ST_OK;
    }
    for (int k = 0; k < RATE_KEYS; k++) {
        if (strcmp(item->key, keys[k].name) != 0)
            continue;
        TRY(read_number(in, item, &v));
        in->r->of[k] = v * keys[k].unit;
        in->r->measured[k] = true;
        return ST_OK;
    }
    if (strcmp(item->key, "memory_gib") == 0) {
        TRY(read_number(in, item, &v));
        in->r->memory = v * GIB;
        return ST_OK;
    }
    if (strcmp(item->key, "ranks_per_node") == 0) {
        TRY(read_number(in, item, &v));
        if (v != floor(v) || v > 1024)
            return FAIL(ST_CONFIG, "%s:%lld: ranks_per_node: expected 1 to 1024, got \"%s\"",
                        in->path, (long long)item->line, item->text);
        in->r->per_node = (int)v;
        return ST_OK;
    }
    char known[256] = "";
    for (int k = 0; k < RATE_KEYS; k++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s, ", keys[k].name);
    }
    return FAIL(ST_CONFIG, "%s:%lld: %s is no rate; there are %smemory_gib, ranks_per_node, source",
                in->path, (long long)item->line, item->key, known);
}

status rates_read(const char *path, rates *out)
{
    *out = rates_h200();
    reading in = {path, out};
    snprintf(out->source, sizeof out->source, "%s", path);
    return yaml_read(path, take, &in);
}

void rates_write(const rates *r, FILE *to)
{
    fprintf(to, "# Rates of this machine, for trainer plan --measured FILE.\nsource: \"%s\"\n",
            r->source);
    for (int k = 0; k < RATE_KEYS; k++)
        if (r->measured[k])
            fprintf(to, "%s: %.6g\n", keys[k].name, r->of[k] / keys[k].unit);
}

void rates_print(const rates *r, FILE *to)
{
    fprintf(to, "rates (%s):\n", r->source);
    for (int k = 0; k < RATE_KEYS; k++)
        fprintf(to, "  %-26s %10.2f %s\n", keys[k].name, r->of[k] / keys[k].unit,
                k == RATE_PEAK   ? "nominal"
                : r->measured[k] ? "measured"
                                 : "assumed");
}
