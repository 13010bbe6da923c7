/* exposition.c: see exposition.h. */
#include "common/http/exposition.h"

#include <math.h>

#include "common/base/visible.h"

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
