/* memory_file.c: writes the plan of memory as JSON. */
#include "trainer/report/memory_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "trainer/plan/plan_print.h"

static status make_text(const session *run, const memory_plan *plan, char **out)
{
    const plan_device *on = &run->planned;
    memory_region region[MEMORY_REGIONS];
    const int count = memory_plan_regions(plan, on, region);
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "device", on->name);
    json_put_key_int(&writer, "device_bytes", (int64_t)on->memory);
    json_put_key_int(&writer, "usable_bytes", (int64_t)on->usable);
    json_put_key_int(&writer, "sharers", on->sharers);
    json_put_key_int(&writer, "planned_by_options", run->planned_by_options);
    json_put_key_int(&writer, "total", plan->total);
    json_begin_key_object(&writer, "regions");
    for (int i = 0; i < count; i++)
        json_put_key_int(&writer, region[i].key, region[i].bytes);
    json_end_object(&writer);
    json_end_object(&writer);
    return json_writer_take(&writer, out, NULL);
}

status memory_file_write(const char *folder, const session *run, const memory_plan *plan)
{
    char path[STATUS_PATH_MAX], *text;
    TRY(make_text(run, plan, &text));
    snprintf(path, sizeof path, "%s/memory.json", folder);
    FILE *file = fopen(path, "we");
    bool bad = !file || fprintf(file, "%s\n", text) < 0;
    bad = (file && fclose(file) != 0) || bad;
    free(text);
    if (bad)
        log_warn("%s is not written: %s", path, strerror(errno));
    return ST_OK;
}
