/* conf_check.c: rules between options. What depends on ranks is the trainer's to check. */
#include "common/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_MAX = 65533 /* and two more follow */ };

static status bad(const conf *c, const char *text)
{
    return FAIL_IN(ST_CONFIG, *c->file ? c->file : NULL, "%s", text);
}

static status check_endpoint(const conf *c)
{
    const char *e = c->prepd_endpoint;
    char words[512];
    if (strncmp(e, "ipc://", 6) == 0 && e[6])
        return ST_OK; /* a path too long for a socket is proto's affair */
    const char *port = strrchr(e, ':');
    if (strncmp(e, "tcp://", 6) == 0 && port > e + 6) {
        char *end;
        long n = strtol(port + 1, &end, 10);
        if (port[1] >= '0' && port[1] <= '9' && !*end && n >= 1 && n <= PORT_MAX)
            return ST_OK;
    }
    snprintf(words, sizeof words,
             "prepd.endpoint: \"%.200s\" is neither ipc://PATH nor tcp://HOST:PORT with a port of "
             "1 to %d",
             e, PORT_MAX);
    return bad(c, words);
}

static status check_scope(const conf *c)
{
    static const char *const parts[] = {"attn", "router", "experts", "vision"};
    const char *scope = c->cuda_graph_scope;
    if (strcmp(scope, "off") == 0 || strcmp(scope, "step") == 0)
        return ST_OK;
    for (const char *p = scope;;) {
        size_t n = strcspn(p, ",");
        bool known = false;
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            known |= strlen(parts[i]) == n && strncmp(p, parts[i], n) == 0;
        if (!known)
            return FAIL_IN(ST_CONFIG, *c->file ? c->file : NULL,
                           "cuda_graph.scope: \"%.100s\" is not off, step, or a list of attn, "
                           "router, experts, vision",
                           scope);
        if (!p[n])
            return ST_OK;
        p += n + 1;
    }
}

status conf_check(const conf *c)
{
    TRY(check_endpoint(c));
    TRY(check_scope(c));
    if (c->training_steps == 0 && c->training_epochs == 0)
        return bad(c, "training.steps 0 means until training.epochs ends, but that is 0 too: set "
                      "one of them");
    if (c->image_min_pixels && c->image_max_pixels && c->image_min_pixels > c->image_max_pixels)
        return bad(c, "image.min_pixels is larger than image.max_pixels");
    if (!*c->job_dump_folder)
        return bad(c, "job.dump_folder is empty; name a folder, for example outputs");
    if (!*c->data_split || !*c->eval_split)
        return bad(c, "data.split and eval.split must name a split, for example train and val");
    if (c->dp_shard == 0)
        return bad(c,
                   "parallelism.data_parallel_shard_degree: 0 ranks; use -1 for all that remain");
    if (c->expert_tensor_degree != 1 && c->expert_tensor_degree != c->tensor_degree)
        return bad(c, "parallelism.expert_tensor_parallel_degree must be 1 or equal "
                      "parallelism.tensor_parallel_degree");
    if (!*c->checkpoint_folder || c->checkpoint_folder[0] == '/' ||
        strstr(c->checkpoint_folder, ".."))
        return bad(c, "checkpoint.folder must be a folder inside job.dump_folder, for example "
                      "checkpoint");
    return ST_OK;
}
