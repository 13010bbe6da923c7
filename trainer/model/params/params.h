/* SPDX-License-Identifier: Apache-2.0 */
/* params.h: the registry: one list of all parameters. The model, the optimiser, checkpoints, plans
 * and inspect read it; nothing else lists parameters.
 *
 * A row describes one parameter under its published name: its shape, how it is trained, which part
 * of it this rank computes with and which part it stores. A program uses the registry in this
 * order:
 *
 *   params_new      rows with shapes, no memory
 *   lora_add, groups_apply    adapters; what is frozen, which learning rates (lora_params.h, optim)
 *   params_cut      what this rank computes with: tensor, expert and pipeline parallelism
 *   params_share    what it stores of that: FSDP (parallel/fsdp.h)
 *   params_alloc    device memory
 *   params_init, or checkpoint/hf/hf_load.h and then params_refresh    values
 *
 * params_pieces says which tensors of a Hugging Face file hold each row: one of the same shape, one
 * with the last two axes exchanged, or several per expert (expert_layout). */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_H
#define TESSERA_TRAINER_MODEL_PARAMS_H

#include "common/conf/conf.h"
#include "trainer/device/backend.h"
#include "trainer/device/pool.h"
#include "trainer/model/dims/dims.h"
#include "trainer/ops/weight_blocks.h"
#include "trainer/parallel/fsdp.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/slice.h"

typedef enum param_group {
    GROUP_VISION, /* patch embedding, blocks */
    GROUP_MERGER, /* final and deepstack mergers, position table */
    GROUP_TEXT,   /* embedding, attention, norms, dense MLPs, head */
    GROUP_ROUTER,
    GROUP_EXPERTS,
    GROUP_COUNT
} param_group;

typedef enum param_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } param_init;

/* Which ranks divide a parameter among them, before FSDP divides the rest (parallel/layouts.md). */
typedef enum param_cut { CUT_NONE, CUT_TENSOR, CUT_EXPERT } param_cut;

typedef struct param {
    char name[128]; /* name in the published Hugging Face file */
    int n_dims;
    int64_t shape[5]; /* as published */
    int64_t count;    /* elements of that shape */
    param_cut cut;
    int cut_axis; /* the axis that tensor ranks, or expert-tensor ranks, divide; -1: none. A half of
                   * an expert's adapter with -1 is whole on each of these ranks */
    /* What this rank computes with. It is the whole parameter until params_cut. */
    slice held; /* which published elements; experts are seen as [E, in, parts, out / parts] */
    int64_t local[5], n_local; /* shape and elements of that part */
    int unit;                  /* the FSDP unit that uses it (unit_order.h) */
    int64_t layer;             /* decoder layer; -1: it belongs to none */
    bool stays;                /* two units use it: a tied embedding, which stays gathered */
    bool forward_only;         /* backward does not read its value: embeddings */
    bool reached;              /* backward passes through its unit; set by params_size */
    bool elsewhere;            /* it belongs to another pipeline stage; set by params_cut */
    /* Its span in params.spans, its first element there, and which of its local elements this rank
     * stores: all of them unless ranks share it. Set by params_alloc. */
    int64_t span, at, own_first, own_n;
    param_group group;
    param_init init;
    double init_std; /* of INIT_NORMAL */
    bool decay;      /* weight decay applies */
    /* how it is trained (optim/groups.h) */
    bool frozen;      /* no gradient and no moments; decided before params_alloc */
    bool kept;        /* frozen, but not as model.path has it: checkpoints must hold its value */
    double lr_factor; /* times the learning rate of the step; 1 by default */
    double own_decay; /* replaces optimizer.weight_decay; below 0: it does not */
    /* Set by groups_apply for matrices that are trained, but for routers. */
    bool coded;      /* its moments are codes of 8 bits (ops/state_codes.h) */
    bool act_master; /* it has no master value in acc: own_act is updated, rounded to BF16 */
    /* Not WEIGHT_PLAIN: this frozen matrix is stored as codes (quantised.h), own_act is NULL, and
     * act is where it is expanded to. own_blocks: of the elements that this rank stores, which are
     * whole blocks; blocks: of n_local. */
    weight_form form;
    void *own_blocks, *blocks;
    bool adapter; /* a LoRA adapter (layers.h), which is in no file of the model */
    int64_t lora; /* the rows at this + lora and the next are its adapter; 0: it has none */
    double lora_scale;
    bool dora;     /* after these two comes the row of its lengths (layers.h) */
    double *whole; /* [count] on the host: an adapter after lora_gather, else NULL */
    /* Device memory, NULL until params_alloc. First what this rank stores, [own_n], in the types of
     * the blocks in `params`. The last four are NULL for a frozen parameter, which has own_act
     * alone (and so has every parameter if nothing is trained). */
    void *own_act; /* what is computed with */
    void *value; /* master value; own_act if both have one type, which a frozen parameter has too */
    void *own_grad, *moment1, *moment2;
    float *scale1, *scale2; /* of blocks of moments [ceil(own_n / STATE_BLOCK)]; NULL: not coded */
    st_dtype act_dtype, value_dtype, moment_dtype;
    /* What the model reads and writes, [n_local], valid between fsdp_units_enter and
     * fsdp_units_leave of its unit. On a single rank they are own_act and own_grad. */
    void *act, *grad;
    void *unwanted; /* a shared place for the gradient of a frozen vector, which nothing reads */
} param;

/* Whether its value is found in model.path, or drawn again,
 * so that checkpoints need not hold it. */
static inline bool param_in_base(const param *weight)
{
    return weight->frozen && !weight->kept && !weight->adapter;
}

/* Where an op that always computes a gradient puts that of `weight`. */
static inline void *param_gradient(const param *weight)
{
    return weight->grad ? weight->grad : weight->unwanted;
}

/* An array of device memory that holds one kind of values of all rows. */
typedef struct param_block {
    void *at; /* NULL: there is none */
    st_dtype dtype;
    int64_t count; /* elements */
    bool on_host;  /* it rests in host memory (device_host_array) */
} param_block;

/* States that are kept on the host are copied to the device unit by unit, into two buffers that are
 * used in turn, by the parity of a unit's number, and begin at multiples of STATES_ALIGN bytes. */
enum { STATES_TURNS = 2, STATES_ALIGN = 256 };

typedef struct params {
    param *list; /* [count] in the order of the published files, adapters last */
    int64_t count;
    int64_t total;           /* elements of all rows */
    bool text_only_names;    /* names of a text-only model: three tensors per expert */
    const char *text_prefix; /* "model.language_model." or "model." */
    int64_t lora_rank;       /* 0: no adapters */
    double lora_alpha;       /* as in lora_kind (lora_params.h) */
    bool lora_rslora, lora_dora;
    bool lora_experts;       /* some adapters belong to experts */
    const mesh *mesh;        /* the ranks that store the parameters together; NULL: one rank */
    bool coded, act_masters; /* some row is; set with the spans */
    bool convert_states;     /* train_state_load may convert states of another kind */
    bool moments_on_host;    /* what is in the blocks of moments rests on the host */
    bool frozen_on_host;     /* weights that are not trained rest there, and come unit by unit */
    bool reshard;            /* as in unit_options (parallel/fsdp.h); true by default */
    bool in_backward; /* the same; gradients then exist unit by unit, and own_grad is one of two
                       * buffers that units take turns in */
    unit_span *spans; /* [n_spans] by unit: rows of a unit that the same ranks share */
    int64_t n_spans;
    fsdp_units *fsdp_units; /* NULL if no other rank stores anything */
    /* What this rank stores, one device block per kind. Spans and rows are parts of the blocks,
     * those that are trained first. Gaps between them hold zeros, so a block may be treated as one
     * array: acts of block_elements, values, gradients and moments of the trained_elements with
     * which acts begins. If act and acc are one type, values is that beginning of acts and no
     * its own memory. Set by params_alloc.
     *
     * If some row is coded, the blocks of moments are bytes, in which each row has its own place,
     * unit by unit, and its scales follow its codes. If some row has its master value in act and
     * act is not acc, that is so too, and values is the beginning of acts; rows that keep their
     * master values in acc have them in moments1, after their moments. */
    param_block acts, values, grads, moments1, moments2;
    param_block resting; /* with frozen_on_host, what is not trained; acts ends with the trained */
    void *unwanted;
    int64_t block_elements, trained_elements;
    /* Matrices of another form than plain values are in none of these blocks but in codes, and are
     * expanded in `expanded`, one at a time. */
    weight_form base_form;
    param_block codes;    /* bytes: of coded_blocks blocks (ops/weight_blocks.h) */
    param_block expanded; /* act */
    int64_t coded_blocks;
    double *adapters;   /* heap memory that param.whole points into; NULL until lora_gather */
    int64_t bytes_read; /* how much this rank has read from files so far */
} params;

/* Makes the rows of a model with these dimensions. Heap; no memory for values. ST_NO_MEMORY. */
WARN_UNUSED status params_new(const model_dims *dims, params **out);
/* Reduces every row to what a rank at this place of layout `degrees` computes with, and marks the
 * rows of other pipeline stages. Before params_alloc. ST_CONFIG as layout_check. */
WARN_UNUSED status params_cut(params *registry, const model_dims *dims, const layout *degrees,
                              mesh_place at);
/* The ranks that compute with the same local tensor and so share its storage. */
mesh_group params_owners(const param *weight);
/* The limits that a model with these dimensions sets for a layout. */
layout_limits params_limits(const model_dims *dims);
void params_free(params **registry); /* after params_release; accepts a pointer to NULL */
int64_t params_trained(const params *registry); /* elements of the rows that are not frozen */
bool params_trains(const params *registry, param_group group); /* some row of it is not frozen */
const param *params_find(const params *registry, const char *name); /* NULL if absent */
/* The row with this printf-like name. It must exist; that is asserted, since the model asks only
 * for parameters that it has. */
param *params_get(params *registry, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Lets the ranks of `ranks` store every local tensor together, each of its owners an equal piece
 * (parallel/fsdp.h). Before params_alloc. `ranks` is borrowed. */
void params_share(params *registry, const mesh *ranks, bool reshard);
/* What a rank needs on its device: elements that it stores as plain values, how many of them are
 * trained, and the bytes of each block and of the buffers that units are gathered into. It also
 * works for a mesh that is only sketched. */
typedef struct params_sizes {
    int64_t stored, trained;
    int64_t acts, values, grads, moments; /* bytes; moments: of each of the two blocks */
    int64_t unwanted;                     /* bytes */
    int64_t codes, expanded;              /* bytes */
    int64_t uncoded; /* bytes that what is in codes would take as plain values */
    int64_t resting; /* bytes of host memory: frozen weights */
    int64_t gathered_bytes;
    bool act_masters;           /* master values are the beginning of acts, whatever acc is */
    bool moments_on_host;       /* the blocks of moments are host memory .. */
    int64_t turn[STATES_TURNS]; /* .. and each has such buffers on the device, in bytes */
} params_sizes;
WARN_UNUSED status params_size(params *registry, const backend_vtable *backend, bool with_training,
                               params_sizes *out);
/* Allocates the device memory of values; with_training also of gradients and moments. On failure
 * nothing stays allocated. */
WARN_UNUSED status params_alloc(params *registry, stream *queue, bool with_training);
void params_release(params *registry, stream *queue);
/* Draws first values. Each is a function of the seed, the name and the place of the element in the
 * published tensor, so that every layout of ranks starts from the same model. Waits. */
WARN_UNUSED status params_init(params *registry, stream *queue, uint64_t seed);
/* For benches, whose results hardly depend on the values: draws only the first `period` values of
 * what this rank stores of each parameter, and fills the rest with copies of them on the device.
 * Drawing and uploading the billions of values of a few layers takes longer than timing them. A
 * period that is prime divides no matrix, so no two experts get the same values. Waits. */
enum { PARAMS_BENCH_PERIOD = (1 << 18) + 3 }; /* a prime, and more than a router has values */
WARN_UNUSED status params_init_repeating(params *registry, stream *queue, uint64_t seed,
                                         int64_t period);
/* params_init for adapters only, when the other values have been loaded. */
WARN_UNUSED status params_init_adapters(params *registry, stream *queue, uint64_t seed);
WARN_UNUSED status params_zero_grad(params *registry, stream *queue);
/* Sums the gradients over replicas. Called once per step, after its last backward. */
WARN_UNUSED status params_sum_replicas(params *registry, stream *queue);
/* Computes own_act from value where they are two arrays. It goes through the host and waits, and is
 * meant for use after loading; in a step the optimiser writes both. */
WARN_UNUSED status params_refresh(params *registry, stream *queue);
/* Writes those of the local elements [first, first + count) of a row that this rank stores, from
 * host doubles. Waits. params_write_by lets threads convert or encode them. */
WARN_UNUSED status params_write_by(const param *weight, stream *queue, int64_t first, int64_t count,
                                   const double *from, pool *threads);
WARN_UNUSED status params_write(const param *weight, stream *queue, int64_t first, int64_t count,
                                const double *from);
/* Reads elements [first, first + count) of an acc array such as own_grad into host doubles.
 * Waits. */
WARN_UNUSED status params_read(const void *acc_array, stream *queue, int64_t first, int64_t count,
                               double *to);
/* The same for stored values of a row: its master values, or the only copy of a frozen row. */
WARN_UNUSED status params_read_value(const param *weight, stream *queue, int64_t first,
                                     int64_t count, double *to);
/* The same for an array of any of the types that convert.h knows. */
WARN_UNUSED status params_read_array(const void *array, st_dtype dtype, stream *queue,
                                     int64_t first, int64_t count, double *to);
/* The array that params_read_value reads, and its type; NULL for a matrix in codes. */
static inline const void *param_best(const param *weight, st_dtype *out_dtype)
{
    *out_dtype = weight->value ? weight->value_dtype : weight->act_dtype;
    return weight->value ? weight->value : weight->own_act;
}

/* How a file stores experts (equations.md, "Parameters and their files"). */
typedef enum expert_layout {
    EXPERTS_FUSED,     /* [E, in, out]: published for models with vision, and the registry's form */
    EXPERTS_EXCHANGED, /* [E, out, in]: written by the 5 series of transformers */
    EXPERTS_SEPARATE,  /* 3 matrices [out, in] per expert: published for text-only models */
} expert_layout;

/* The layout in which a model of this kind is published. */
static inline expert_layout params_published(const params *registry)
{
    return registry->text_only_names ? EXPERTS_SEPARATE : EXPERTS_FUSED;
}

/* One tensor of a Hugging Face file and the row that holds its values. With expert >= 0 the tensor
 * [rows, columns] is the transpose of columns [column, column + rows) of that expert's matrix in
 * weight [E, in, out]. With exchanged the tensor [E, out, in] is weight [E, in, out] with every
 * matrix transposed. Otherwise it is `weight`. */
typedef struct param_piece {
    char name[128];
    int n_dims;
    int64_t shape[5];
    int64_t count;
    const param *weight;
    int64_t expert; /* -1: the tensor holds all experts, or `weight` has none */
    int64_t column;
    bool exchanged;
} param_piece;

/* Lists the tensors of a file in this layout, in the registry's order, without adapters. The caller
 * frees *out. */
WARN_UNUSED status params_pieces(const params *registry, expert_layout stored, param_piece **out,
                                 int64_t *out_n);

/* Fills registry->list; the part of params_new that is in params_list.c. */
WARN_UNUSED status params_list(const model_dims *dims, params *registry);

/* What a rank of any layout would hold and store, computed without a device and without the other
 * ranks. Memory plans use it to compare layouts. */

/* Makes a copy of the `registry`, cut and shared as params_cut and params_share would do for `rank`
 * of layout `degrees`, with its spans filled in as by params_size. `registry` must have been
 * through groups_apply (optim/groups.h) and must not be cut itself; for a pipeline, `degrees` must
 * have its stage_end set. The copy has no mesh if `degrees` has one rank; otherwise its mesh has
 * the groups within a pipeline stage. It must not be passed to params_alloc. ST_CONFIG as
 * layout_check. */
WARN_UNUSED status params_sketch_new(const params *registry, const model_dims *dims,
                                     const layout *degrees, int rank, bool reshard, params **out);
void params_sketch_free(params **registry); /* accepts a pointer to NULL */

#endif
