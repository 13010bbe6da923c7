/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_fingerprint.c: `prepd fingerprint`, which prints the fingerprints of this machine
 * (agreed/fingerprints.h). A daemon starts it to get its own, since image code never runs in the
 * dispatcher. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/model_folder/model_files.h"
#include "common/base/proc.h"
#include "common/tokenizer/tokenizer.h"
#include "common/program/verb.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/cli/verbs.h"
#include "prepd/worker/media/image_load.h"
#include "prepd/worker/row_prints.h"
#include "prepd/worker/sandbox.h"

/* What the fingerprints are made with; each is loaded when it is first needed. */
typedef struct print_maker {
    const char *self, *model;
    const image_api *images;
    const video_api *videos;
    fingerprints made;
} print_maker;

static status of_tokens(const char *model, hash128 *out)
{
    char folder[STATUS_PATH_MAX];
    tokenizer *vocabulary = NULL;
    TRY(model_files_find(model, folder));
    TRY(tokenizer_load(folder, &vocabulary));
    const status st = tokenizer_fingerprint(vocabulary, out);
    tokenizer_free(&vocabulary);
    return st;
}

static status make_print(print_maker *maker, print_kind kind)
{
    hash128 print;
    if (kind != PRINT_TOKENS && !maker->images)
        TRY(image_load(maker->self, &maker->images));
    if ((kind == PRINT_VIDEOS || kind == PRINT_CLIPS) && !maker->videos)
        TRY(video_load(&maker->videos));
    if (kind == PRINT_CLIPS)
        return row_prints_make_clips(maker->images, maker->videos, &maker->made);
    if (kind >= N_STREAM_PRINTS)
        return maker->made.of[kind][0] ? ST_OK : row_prints_make(maker->images, &maker->made);
    TRY(kind == PRINT_IMAGES   ? maker->images->fingerprint(&print)
        : kind == PRINT_VIDEOS ? maker->videos->fingerprint(&print)
                               : of_tokens(maker->model, &print));
    fingerprints_set(&maker->made, kind, print);
    return ST_OK;
}

/* Prints each line as soon as its hash is known, so that a daemon that needs one need not wait for
 * all. only: names of the fingerprints wanted; NULL for all. */
static status print_fingerprints(const char *self, const char *model, const char *only)
{
    print_maker maker = {.self = self, .model = model};
    for (int k = 0; k < N_PRINTS; k++) {
        if ((only && !strstr(only, print_names[k])) || (k == PRINT_TOKENS && !model))
            continue;
        TRY(make_print(&maker, (print_kind)k));
        printf("%s %s\n", print_names[k], maker.made.of[k]);
        fflush(stdout);
    }
    return ST_OK;
}

/* Prints for a daemon. A failure is printed as a line, since the daemon reports it to its user. */
static status tell_daemon(pid_t parent, const char *self, const char *model, const char *only)
{
    TRY(proc_follow_parent(parent, SIGKILL));
    prctl(PR_SET_NAME, "prepd"); /* a program that runs from a descriptor is named by its number */
    status st = sandbox_shed_privileges();
    if (st == ST_OK)
        st = print_fingerprints(self, model, only);
    if (st == ST_OK)
        return ST_OK;
    printf("error %d %s\n", (int)st, status_text());
    fflush(stdout);
    exit(status_exit_code(st));
}

status verb_fingerprint(int argc, char **argv)
{
    const char *self = argv[-1], *model, *parent, *only;
    int64_t pid = 0;
    TRY(verb_take(&argc, argv, "--model", &model));
    TRY(verb_take(&argc, argv, "--parent", &parent));
    TRY(verb_take(&argc, argv, "--only", &only));
    if (parent)
        TRY(verb_number("--parent", parent, 1, INT32_MAX, &pid));
    TRY(verb_all_taken(argc, argv));
    setenv("VIPS_CONCURRENCY", "1", 1);
    if (parent)
        return tell_daemon((pid_t)pid, self, model, only);
    printf("build %s\n", prepd_build);
    return print_fingerprints(self, model, NULL);
}
