/* params_pieces.c: the tensors of a Hugging Face file that hold each parameter (equations.md,
 * "Parameters and their files"). */
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params.h"

/* The length of "X.mlp.experts" in "X.mlp.experts.gate_up_proj". */
static int stem_size(const param *weight)
{
    return (int)(strrchr(weight->name, '.') - weight->name);
}

/* The tensor [rows, in] of one expert, which is the transpose of columns [column, column + rows) of
 * weight [E, in, out]. */
static param_piece expert_piece(const param *weight, int64_t expert, const char *which,
                                int64_t column, int64_t rows)
{
    param_piece piece = {.n_dims = 2, .weight = weight, .expert = expert, .column = column};
    snprintf(piece.name, sizeof piece.name, "%.*s.%lld.%s_proj.weight", stem_size(weight),
             weight->name, (long long)expert, which);
    piece.shape[0] = rows;
    piece.shape[1] = weight->shape[1];
    piece.count = piece.shape[0] * piece.shape[1];
    return piece;
}

static param_piece whole_piece(const param *weight, expert_layout stored)
{
    param_piece piece = {
        .n_dims = weight->n_dims, .count = weight->count, .weight = weight, .expert = -1};
    memcpy(piece.name, weight->name, sizeof piece.name);
    memcpy(piece.shape, weight->shape, sizeof piece.shape);
    if (weight->group == GROUP_EXPERTS && stored == EXPERTS_EXCHANGED) {
        piece.exchanged = true;
        piece.shape[1] = weight->shape[2];
        piece.shape[2] = weight->shape[1];
    }
    return piece;
}

status params_pieces(const params *registry, expert_layout stored, param_piece **out,
                     int64_t *out_n)
{
    bool per_expert = stored == EXPERTS_SEPARATE;
    int64_t most = registry->count;
    for (int64_t i = 0; i < registry->count && per_expert; i++) {
        if (registry->list[i].group == GROUP_EXPERTS && !registry->list[i].adapter)
            most += 2 * registry->list[i].shape[0];
    }
    param_piece *list = malloc((size_t)(most > 0 ? most : 1) * sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensor names", (long long)most);
    int64_t count = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->adapter)
            continue;
        if (!per_expert || row->group != GROUP_EXPERTS) {
            list[count++] = whole_piece(row, stored);
            continue;
        }
        bool pair = strstr(row->name, "gate_up_proj") != NULL;
        int64_t width = pair ? row->shape[2] / 2 : row->shape[2];
        for (int64_t j = 0; j < row->shape[0]; j++) {
            list[count++] = expert_piece(row, j, pair ? "gate" : "down", 0, width);
            if (pair)
                list[count++] = expert_piece(row, j, "up", width, width);
        }
    }
    *out = list;
    *out_n = count;
    return ST_OK;
}
