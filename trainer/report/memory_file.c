/* memory_file.c: writes the plan of memory as JSON. */
#include "trainer/report/memory_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "trainer/plan/plan_print.h"

static status make_text(const session *s, const memory_plan *p, char **out)
{
    const plan_device *on = &s->planned;
    memory_region region[MEMORY_REGIONS];
    const int n = memory_plan_regions(p, on, region);
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "device", on->name);
    json_put_key_int(&w, "device_bytes", (int64_t)on->memory);
    json_put_key_int(&w, "usable_bytes", (int64_t)on->usable);
    json_put_key_int(&w, "sharers", on->sharers);
    json_put_key_int(&w, "planned_by_options", s->planned_by_options);
    json_put_key_int(&w, "total", p->total);
    json_begin_key_object(&w, "regions");
    for (int i = 0; i < n; i++)
        json_put_key_int(&w, region[i].key, region[i].bytes);
    json_end_object(&w);
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}

status memory_file_write(const char *folder, const session *s, const memory_plan *p)
{
    char path[STATUS_PATH_MAX], *text;
    TRY(make_text(s, p, &text));
    snprintf(path, sizeof path, "%s/memory.json", folder);
    FILE *f = fopen(path, "we");
    bool bad = !f || fprintf(f, "%s\n", text) < 0;
    bad = (f && fclose(f) != 0) || bad;
    free(text);
    if (bad)
        log_warn("%s is not written: %s", path, strerror(errno));
    return ST_OK;
}
