/* SPDX-License-Identifier: Apache-2.0 */
/* plan_json.c: plans as JSON: of a run that has begun, and of modes for programs such as
 * deploy/what-fits. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/plan_print.h"
#include "trainer/plan/recompute_plan.h"

/* Puts what a mode of activation checkpointing takes and, if rates are known, its predicted time.
 */
static status put_mode(json_writer *writer, const plan_input *in, int mode, const rates *speeds)
{
    static const char *const names[] = {
        [AC_NONE] = "none", [AC_SELECTIVE] = "selective", [AC_FULL] = "full"};
    const int64_t rows = in->conf->training_local_batch_size;
    recomputes recomputed;
    memory_plan plan;
    cost price;
    TRY(recompute_plan_with(in, rows, mode, &recomputed));
    TRY(layout_plan_make(in, rows, &recomputed, &plan));
    json_begin_object(writer);
    json_put_key_cstr(writer, "mode", names[mode]);
    json_put_key_bool(writer, "fits", layout_fits(in, &plan));
    json_put_key_int(writer, "bytes", plan.total);
    json_put_key_int(writer, "host_bytes", memory_host(&plan));
    if (speeds) {
        TRY(cost_of(in->conf, in->layout, in->dims, in->params, speeds, &recomputed, &price));
        json_put_key_real(writer, "step_seconds", price.step);
        json_put_key_real(writer, "tokens_per_s", price.tokens_per_s);
        json_put_key_real(writer, "mfu", price.mfu);
        json_put_key_cstr(writer, "attention", attention_kernels_name(price.text_backward));
        json_put_key_bool(writer, "portable_experts", price.untimed_experts);
    }
    json_end_object(writer);
    return ST_OK;
}

status plan_json_print(const plan_input *in, const rates *speeds, FILE *to)
{
    const plan_device *on = in->device;
    json_writer writer;
    char *text;
    status st = ST_OK;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "model", in->dims->name);
    json_put_key_bool(&writer, "has_experts", in->dims->text.experts > 0);
    json_put_key_int(&writer, "experts", in->dims->text.experts);
    json_put_key_cstr(&writer, "device", on->name);
    json_put_key_int(&writer, "device_bytes", (int64_t)on->memory);
    json_put_key_int(&writer, "limit_bytes", (int64_t)(in->conf->memory_limit * on->usable));
    json_put_key_bool(&writer, "rates_measured", on->card && on->card->measured);
    json_begin_key_array(&writer, "modes");
    for (int mode = AC_NONE; mode <= AC_FULL && st == ST_OK; mode++)
        st = put_mode(&writer, in, mode, speeds);
    json_end_array(&writer);
    json_end_object(&writer);
    if (st != ST_OK) {
        json_writer_done(&writer);
        return st;
    }
    TRY(json_writer_take(&writer, &text, NULL));
    fprintf(to, "%s\n", text);
    free(text);
    return ST_OK;
}

static status make_text(const plan_device *on, const memory_plan *plan, int64_t by_options,
                        char **out)
{
    memory_region region[MEMORY_REGIONS];
    const int count = memory_plan_regions(plan, on, region);
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "device", on->name);
    json_put_key_int(&writer, "device_bytes", (int64_t)on->memory);
    json_put_key_int(&writer, "usable_bytes", (int64_t)on->usable);
    json_put_key_int(&writer, "sharers", on->sharers);
    json_put_key_int(&writer, "planned_by_options", by_options);
    json_put_key_int(&writer, "total", plan->total);
    json_begin_key_object(&writer, "regions");
    for (int i = 0; i < count; i++)
        json_put_key_int(&writer, region[i].key, region[i].bytes);
    json_end_object(&writer);
    json_end_object(&writer);
    return json_writer_take(&writer, out, NULL);
}

status plan_json_write(const char *folder, const plan_device *on, const memory_plan *plan,
                       int64_t by_options)
{
    char path[STATUS_PATH_MAX], *text;
    TRY(make_text(on, plan, by_options, &text));
    snprintf(path, sizeof path, "%s/memory.json", folder);
    FILE *file = fopen(path, "we");
    bool bad = !file || fprintf(file, "%s\n", text) < 0;
    bad = (file && fclose(file) != 0) || bad;
    free(text);
    if (bad)
        log_warn("%s is not written: %s", path, strerror(errno));
    return ST_OK;
}
