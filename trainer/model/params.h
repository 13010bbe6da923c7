/* params.h: the registry: every stored parameter once, in one list. Checkpoint I/O, the optimiser,
 * plan and inspect read it; nothing else lists parameters.
 *
 * A row is a stored parameter and the Hugging Face tensors it is made of (name, slice, transpose):
 * expert tensors [E, H, 2I] hold one published tensor, or 2E of the per-expert form. */
#ifndef TESSERA_MODEL_PARAMS_H
#define TESSERA_MODEL_PARAMS_H

#include "common/conf.h"
#include "trainer/device/backend.h"
#include "trainer/model/dims.h"

typedef enum param_group {
    GROUP_VISION, /* patch embedding, blocks */
    GROUP_MERGER, /* final and deepstack mergers, position table */
    GROUP_TEXT,   /* embedding, attention, norms, dense MLP, head */
    GROUP_ROUTER,
    GROUP_EXPERTS,
    GROUP_COUNT
} param_group;

typedef enum param_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } param_init;

typedef struct param {
    char name[128]; /* Hugging Face name of the published form */
    int n_dims;
    int64_t shape[5]; /* as published */
    int64_t count;
    param_group group;
    param_init init;
    double init_std;
    bool decay; /* weight decay applies */
    /* device memory, NULL until params_alloc */
    void *value;                    /* master, acc */
    void *act;                      /* compute copy; == value where act == acc */
    void *grad, *moment1, *moment2; /* acc */
} param;

typedef struct params {
    param *list;
    int64_t n;
    int64_t total;        /* elements */
    bool text_only_names; /* spec 2.3: per-expert tensors, prefix "model." */
} params;

/* The list of shapes; no memory for values. */
WARN_UNUSED status params_new(const model_dims *d, params **out);
void params_free(params **p);
const param *params_find(const params *p, const char *name);
/* Index for the model: params_index(p, "layers.%d....") is done once at model_new. */
param *params_get(params *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Device memory: values; with_training adds gradients and moments. */
WARN_UNUSED status params_alloc(params *p, stream *s, bool with_training);
void params_release(params *p, stream *s);
/* Values by the initialiser, each a function of (seed, name, element). */
WARN_UNUSED status params_init(params *p, stream *s, uint64_t seed);
WARN_UNUSED status params_zero_grad(params *p, stream *s);
/* act = cast(value), where they differ. */
WARN_UNUSED status params_refresh(params *p, stream *s);

#endif
