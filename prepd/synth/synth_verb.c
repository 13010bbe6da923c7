/* synth_verb.c: the command line of prepd synth. */
#include <stdio.h>
#include <string.h>

#include "common/program/verb.h"
#include "common/base/visible.h"
#include "prepd/synth/scene.h"
#include "prepd/synth/synth.h"

status verb_synth(int argc, char **argv)
{
    const char *images, *seed, *sizes;
    int64_t seeded;
    synth_options options = {.sizes = SIZES_SMALL};
    TRY(verb_take(&argc, argv, "--out", &options.folder));
    TRY(verb_take(&argc, argv, "--images", &images));
    TRY(verb_take(&argc, argv, "--seed", &seed));
    TRY(verb_take(&argc, argv, "--sizes", &sizes));
    TRY(verb_all_taken(argc, argv));
    if (!options.folder || !*options.folder || !images || !seed)
        return FAIL(ST_USAGE, "synth needs --out DIR, --images N and --seed S; see prepd synth "
                              "--help");
    TRY(verb_number("--images", images, SYNTH_MIN_IMAGES, SYNTH_MAX_IMAGES, &options.images));
    TRY(verb_number("--seed", seed, 0, INT64_MAX, &seeded));
    options.seed = (uint64_t)seeded;
    if (sizes && strcmp(sizes, "small") != 0 && strcmp(sizes, "coco") != 0)
        return FAIL(ST_USAGE, "--sizes %s: expected small or coco", sizes);
    if (sizes && strcmp(sizes, "coco") == 0)
        options.sizes = SIZES_COCO;
    TRY(synth_write(&options));
    int64_t held_out = synth_held_out(options.images);
    printf("%s: %lld pictures for train, %lld for val; model in %s/model\n",
           escape_text(options.folder).text, (long long)(options.images - held_out),
           (long long)held_out, escape_text(options.folder).text);
    return ST_OK;
}
