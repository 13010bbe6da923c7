/* verb.c: the command line of prepd synth. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/synth/scene.h"
#include "prepd/synth/synth.h"

static const char HELP[] =
    "usage: prepd synth --out DIR --images N --seed S [--sizes small|coco]\n"
    "\n"
    "Generates a data set in the VQAv2 layout: JPEG pictures of shapes on textured grounds, the\n"
    "official pairs of JSON files for train and val, and DIR/model with a small tokenizer and\n"
    "model configuration. Every question text has all its answers equally often.\n"
    "\n"
    "  --out DIR             folder to write; new, empty, or one that synth wrote before\n"
    "  --images N            pictures in total; a tenth (at least 64, at most half) are held out\n"
    "  --seed S              the same seed gives the same bytes\n"
    "  --sizes small|coco    sides of 60 to 100 pixels (default), or those of COCO\n";

static status read_number(const char *flag, const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || v > INT64_MAX)
        return FAIL(ST_USAGE, "%s %s: a whole number from 0 to %lld is wanted", flag, text,
                    (long long)INT64_MAX);
    *out = v;
    return ST_OK;
}

static status read_option(synth_options *o, const char *flag, const char *value)
{
    uint64_t images;
    if (strcmp(flag, "--out") == 0) {
        if (!value[0])
            return FAIL(ST_USAGE, "--out: a folder is wanted");
        o->folder = value;
        return ST_OK;
    }
    if (strcmp(flag, "--seed") == 0)
        return read_number(flag, value, &o->seed);
    if (strcmp(flag, "--images") == 0) {
        TRY(read_number(flag, value, &images));
        o->images = (int64_t)images;
        return ST_OK;
    }
    if (strcmp(flag, "--sizes") == 0) {
        if (strcmp(value, "small") != 0 && strcmp(value, "coco") != 0)
            return FAIL(ST_USAGE, "--sizes %s: small or coco is wanted", value);
        o->sizes = strcmp(value, "coco") == 0 ? SIZES_COCO : SIZES_SMALL;
        return ST_OK;
    }
    return FAIL(ST_USAGE, "prepd synth has no option %s (it has --out, --images, --seed, --sizes)",
                flag);
}

status verb_synth(int argc, char **argv)
{
    synth_options o = {.images = -1, .sizes = SIZES_SMALL};
    bool seeded = false;
    for (int i = 1; i < argc; i++) {
        char flag[32];
        const char *equals = strchr(argv[i], '=');
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(HELP, stdout);
            return ST_OK;
        }
        size_t n = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        snprintf(flag, sizeof flag, "%.*s", (int)(n < sizeof flag ? n : sizeof flag - 1), argv[i]);
        if (!equals && i + 1 == argc)
            return FAIL(ST_USAGE, "%s: a value is wanted after it", argv[i]);
        TRY(read_option(&o, flag, equals ? equals + 1 : argv[++i]));
        seeded |= strcmp(flag, "--seed") == 0;
    }
    if (!o.folder || o.images < 0 || !seeded)
        return FAIL(ST_USAGE, "prepd synth needs --out DIR, --images N and --seed S; see --help");
    TRY(synth_write(&o));
    int64_t held_out = synth_held_out(o.images);
    printf("%s: %lld pictures for train, %lld for val; model in %s/model\n", o.folder,
           (long long)(o.images - held_out), (long long)held_out, o.folder);
    return ST_OK;
}
