/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.c: see exposition.h. */
#include "common/http/exposition.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "common/base/words.h"

void exposition_family(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_value(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, " %.17g\n", value);
    else /* printf may write -nan, which Prometheus refuses */
        fprintf(out, " %s\n", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
}

static void put_label(FILE *out, const exposition_label *label)
{
    const visible_text shown = escape_text(label->value);
    fprintf(out, "%s=\"", label->name);
    for (const char *at = shown.text; *at; at++) {
        if (*at == '"' || *at == '\\')
            fputc('\\', out);
        fputc(*at, out);
    }
    fputc('"', out);
}

void exposition_sample(FILE *out, const char *name, const exposition_label *labels, size_t count,
                       double value)
{
    fputs(name, out);
    for (size_t i = 0; i < count; i++) {
        fputc(i ? ',' : '{', out);
        put_label(out, &labels[i]);
    }
    if (count)
        fputc('}', out);
    put_value(out, value);
}

void exposition_labelled(FILE *out, const char *name, const char *label, const char *is,
                         double value)
{
    exposition_sample(out, name, &(exposition_label){label, is}, 1, value);
}

void exposition_one(FILE *out, const char *name, const char *type, const char *help, double value)
{
    exposition_family(out, name, type, help);
    exposition_sample(out, name, NULL, 0, value);
}

/* Process_*, from /proc. */

static int open_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count > 3 ? count - 3 : 0; /* without ".", ".." and this directory itself */
}

/* Of /proc/self/stat: field 22, ticks from the start of the machine to that of this process, and
 * field 23, its address space in bytes. The name before them may hold spaces and brackets. */
static int read_stat(double *out_ticks, double *out_bytes)
{
    enum { LINE_MAX_BYTES = 1024, NAME_FIELD = 2, START_FIELD = 22 };
    char line[LINE_MAX_BYTES] = "", *rest;
    FILE *file = fopen("/proc/self/stat", "re");
    if (!file)
        return 0;
    const char *got = fgets(line, sizeof line, file);
    fclose(file);
    char *at = got ? strrchr(line, ')') : NULL;
    for (int field = NAME_FIELD; at && field < START_FIELD; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return 0;
    *out_ticks = strtod(at, &rest);
    *out_bytes = strtod(rest, NULL);
    return 1;
}

/* When this machine was started, in seconds since 1970; 0: unknown. */
static double machine_start(void)
{
    char line[256];
    long long seconds = 0;
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "btime %lld", &seconds) != 1) {
    }
    if (file)
        fclose(file);
    return (double)seconds;
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

void exposition_process(FILE *out)
{
    struct rusage used;
    struct rlimit files;
    double ticks, bytes;
    const double machine = machine_start();
    if (getrusage(RUSAGE_SELF, &used) == 0)
        exposition_one(out, "process_cpu_seconds_total", "counter",
                       "CPU time of this process, without its children",
                       seconds_of(used.ru_utime) + seconds_of(used.ru_stime));
    exposition_one(out, "process_resident_memory_bytes", "gauge", "resident memory of this process",
                   (double)proc_rss_bytes());
    if (read_stat(&ticks, &bytes)) {
        exposition_one(out, "process_virtual_memory_bytes", "gauge",
                       "address space of this process", bytes);
        if (machine > 0)
            exposition_one(out, "process_start_time_seconds", "gauge",
                           "when this process started, since 1970",
                           machine + ticks / (double)sysconf(_SC_CLK_TCK));
    }
    exposition_one(out, "process_open_fds", "gauge", "open file descriptors", open_descriptors());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        exposition_one(out, "process_max_fds", "gauge", "the most that may be open",
                       (double)files.rlim_cur);
}
