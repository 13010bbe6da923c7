/* params.h: the registry: every stored parameter once, in one list. Checkpoint I/O, the optimiser,
 * plan and inspect read it; nothing else lists parameters.
 *
 * A row is a stored parameter. params_pieces says which Hugging Face tensors it is made of: one of
 * the same shape, one with the last two axes exchanged, or 3 per expert (see expert_layout). */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_H
#define TESSERA_TRAINER_MODEL_PARAMS_H

#include "common/conf/conf.h"
#include "trainer/device/backend.h"
#include "trainer/model/dims.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/slice.h"
#include "trainer/parallel/fsdp.h"

typedef enum param_group {
    GROUP_VISION, /* patch embedding, blocks */
    GROUP_MERGER, /* final and deepstack mergers, position table */
    GROUP_TEXT,   /* embedding, attention, norms, dense MLP, head */
    GROUP_ROUTER,
    GROUP_EXPERTS,
    GROUP_COUNT
} param_group;

typedef enum param_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } param_init;

/* What ranks divide it by, before FSDP divides what is left (parallel/README.md). */
typedef enum param_cut { CUT_NONE, CUT_TENSOR, CUT_EXPERT } param_cut;

typedef struct param {
    char name[128]; /* Hugging Face name of the published form */
    int n_dims;
    int64_t shape[5]; /* as published */
    int64_t count;
    param_cut cut;
    int cut_axis; /* which tensor ranks share, or expert-tensor ranks of experts; -1: none, of
                   * experts (an adapter's half) each of them has all of it */
    /* what this rank computes with: all of it, until params_cut */
    slice held; /* of the published elements; experts as [E, in, parts, out / parts] */
    int64_t local[5], n_local; /* its shape and elements */
    int unit;                  /* it is used with (unit_order.h) */
    int64_t layer;             /* of the decoder, -1: none */
    bool stays;                /* used by two units: a tied embedding */
    bool forward_only;         /* its backward does not read it: embeddings */
    bool reached;              /* backward passes through its unit; from params_size on */
    bool elsewhere;            /* another pipeline stage's: nothing of it is here; params_cut */
    /* where it stands in a span of its unit, and which of its local elements this rank stores: all
     * of them, unless ranks share it; from params_alloc on */
    int64_t span, at, own_first, own_n;
    param_group group;
    param_init init;
    double init_std;
    bool decay; /* weight decay applies */
    /* how it is trained (optim/groups.h) */
    bool frozen;      /* no gradient, no moments; before params_alloc */
    double lr_factor; /* of the step's rate; 1 */
    double own_decay; /* in place of optimizer.weight_decay; below 0: that */
    bool adapter;     /* of LoRA (model/lora.h), in no file of the model */
    int64_t lora;     /* its adapters are this[lora] and the row behind that; 0: it has none */
    double lora_scale;
    double *whole; /* [count] of an adapter, host: lora_gather; NULL: value is all of it */
    /* device memory, NULL until params_alloc. What is stored, [own_n]; trained: NULL where frozen
     */
    void *value;                        /* master, acc */
    void *own_act;                      /* compute copy; == value where act == acc */
    void *own_grad, *moment1, *moment2; /* acc */
    /* What the model reads and writes, [n_local], between fsdp_units_enter and fsdp_units_leave of
     * its unit; of one rank they are own_act and own_grad */
    void *act, *grad;
    void *unwanted; /* where norms put the gradient of a frozen vector: shared, never read */
} param;

/* Where a fused backward puts the gradient of p. */
static inline void *param_gradient(const param *p)
{
    return p->grad ? p->grad : p->unwanted;
}

typedef struct params {
    param *list;
    int64_t n;
    int64_t total;           /* elements */
    bool text_only_names;    /* spec 2.3: per-expert tensors, prefix "model." */
    const char *text_prefix; /* "model.language_model." or "model." */
    int64_t lora_rank;       /* 0: no adapters */
    bool lora_experts;       /* some belong to experts */
    const mesh *mesh;        /* the ranks that store it together; NULL: one */
    bool reshard;            /* unit_options; true */
    unit_span *spans;        /* [n_spans] in order of unit; what units share bytes by */
    int64_t n_spans;
    fsdp_units *fsdp_units; /* NULL where no other rank stores anything */
    /* One device block per kind of what this rank stores, which spans and rows cut up; 0 gaps are
     * possible, so a block may be treated as one array of block_elements (gradients and moments: of
     * trained_elements). Known from params_alloc on. */
    void *values, *acts, *grads, *moments1, *moments2, *unwanted;
    int64_t block_elements, trained_elements;
    double *adapters;   /* what param.whole points into; heap, NULL until lora_gather */
    int64_t bytes_read; /* from files, by this rank so far */
} params;

/* The list of shapes; no memory for values. */
WARN_UNUSED status params_new(const model_dims *d, params **out);
/* Leaves of every row what a rank at this place holds, of those that its stage has; before
 * params_alloc. ST_CONFIG as layout_check. In params_cut.c. */
WARN_UNUSED status params_cut(params *p, const model_dims *d, const layout *l, mesh_place at);
/* The ranks that have the same local tensor of it and share its storage. */
mesh_group params_owners(const param *p);
/* What a model allows of a layout. */
layout_limits params_limits(const model_dims *d);
void params_free(params **p);
int64_t params_trained(const params *p); /* elements that are not frozen */
bool params_trains(const params *p, param_group group);
const param *params_find(const params *p, const char *name); /* NULL if absent */
/* By printf-like name; the row must exist (asserted: the model asks only for what it has). */
param *params_get(params *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ST_CONFIG of a rank that is replayed alone: its values are of no model. Who writes values asks.
 */
WARN_UNUSED status params_may_be_kept(const params *p);
/* The ranks of m store every local tensor in equal pieces (parallel/fsdp.h), its owners' each;
 * before params_alloc. m: borrowed. */
void params_share(params *p, const mesh *m, bool reshard);
/* What a rank takes of its device, in elements of the stored blocks and bytes of the buffers that
 * units are gathered into; of a mesh that was only sketched as well. In params_store.c, as the next
 * three. */
typedef struct params_sizes {
    int64_t stored, trained, gathered_bytes;
} params_sizes;
WARN_UNUSED status params_size(params *p, const backend_vtable *v, bool with_training,
                               params_sizes *out);
/* Device memory: values; with_training adds gradients and moments. */
WARN_UNUSED status params_alloc(params *p, stream *s, bool with_training);
void params_release(params *p, stream *s);
/* Values by the initialiser, each a function of (seed, name, published element), so that ranks of
 * any layout begin with the same model. */
WARN_UNUSED status params_init(params *p, stream *s, uint64_t seed);
/* The same for adapters alone, beside values that were loaded. */
WARN_UNUSED status params_init_adapters(params *p, stream *s, uint64_t seed);
WARN_UNUSED status params_zero_grad(params *p, stream *s);
/* Once per step, behind its last backward: gradients are those of all replicas. */
WARN_UNUSED status params_sum_replicas(params *p, stream *s);
/* act = cast(value), where they differ. Goes through the host and waits: for use after loading; in
 * a step the optimiser writes both. */
WARN_UNUSED status params_refresh(params *p, stream *s);
/* Of local elements [first, first + n) of a row those that are stored here, from host doubles.
 * Waits. */
WARN_UNUSED status params_write(const param *p, stream *s, int64_t first, int64_t n,
                                const double *from);
/* Elements of an array as value or own_grad, to host doubles. Waits. */
WARN_UNUSED status params_read(const void *acc_array, stream *s, int64_t first, int64_t n,
                               double *to);

/* How a file stores the experts (spec 2.3, 2.4). */
typedef enum expert_layout {
    EXPERTS_FUSED,     /* [E, in, out]: published for models with vision; as p has it */
    EXPERTS_EXCHANGED, /* [E, out, in]: written by the 5 series */
    EXPERTS_SEPARATE,  /* 3 matrices [out, in] per expert: published for text-only models */
} expert_layout;

static inline expert_layout params_published(const params *p)
{
    return p->text_only_names ? EXPERTS_SEPARATE : EXPERTS_FUSED;
}

/* One Hugging Face tensor and where its values live. expert >= 0: the tensor [rows, columns] is
 * the transpose of columns [column, column + rows) of that expert's matrix in p [E, in, out].
 * exchanged: the tensor [E, out, in] is p [E, in, out] with every matrix transposed. */
typedef struct param_piece {
    char name[128];
    int n_dims;
    int64_t shape[5];
    int64_t count;
    const param *p;
    int64_t expert; /* -1: the whole parameter */
    int64_t column;
    bool exchanged;
} param_piece;

/* All tensors of the model in the registry's order. Heap. */
WARN_UNUSED status params_pieces(const params *p, expert_layout stored, param_piece **out,
                                 int64_t *out_n);

/* Fills p->list; in params_list.c, called by params_new. */
WARN_UNUSED status params_list(const model_dims *d, params *p);

#endif
