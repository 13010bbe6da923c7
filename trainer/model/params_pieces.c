/* params_pieces.c: the tensors of a Hugging Face file that hold each parameter (equations.md,
 * "Parameters and their files"). */
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params.h"

/* The length of "X.mlp.experts" in "X.mlp.experts.gate_up_proj". */
static int stem_size(const param *p)
{
    return (int)(strrchr(p->name, '.') - p->name);
}

/* The tensor [rows, in] of one expert, which is the transpose of columns [column, column + rows) of
 * p [E, in, out]. */
static param_piece expert_piece(const param *p, int64_t expert, const char *which, int64_t column,
                                int64_t rows)
{
    param_piece piece = {.n_dims = 2, .weight = p, .expert = expert, .column = column};
    snprintf(piece.name, sizeof piece.name, "%.*s.%lld.%s_proj.weight", stem_size(p), p->name,
             (long long)expert, which);
    piece.shape[0] = rows;
    piece.shape[1] = p->shape[1];
    piece.count = piece.shape[0] * piece.shape[1];
    return piece;
}

static param_piece whole_piece(const param *p, expert_layout stored)
{
    param_piece piece = {.n_dims = p->n_dims, .count = p->count, .weight = p, .expert = -1};
    memcpy(piece.name, p->name, sizeof piece.name);
    memcpy(piece.shape, p->shape, sizeof piece.shape);
    if (p->group == GROUP_EXPERTS && stored == EXPERTS_EXCHANGED) {
        piece.exchanged = true;
        piece.shape[1] = p->shape[2];
        piece.shape[2] = p->shape[1];
    }
    return piece;
}

status params_pieces(const params *p, expert_layout stored, param_piece **out, int64_t *out_n)
{
    bool per_expert = stored == EXPERTS_SEPARATE;
    int64_t most = p->count;
    for (int64_t i = 0; i < p->count && per_expert; i++) {
        if (p->list[i].group == GROUP_EXPERTS && !p->list[i].adapter)
            most += 2 * p->list[i].shape[0];
    }
    param_piece *list = malloc((size_t)(most > 0 ? most : 1) * sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensor names", (long long)most);
    int64_t n = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const param *row = &p->list[i];
        if (row->adapter)
            continue;
        if (!per_expert || row->group != GROUP_EXPERTS) {
            list[n++] = whole_piece(row, stored);
            continue;
        }
        bool pair = strstr(row->name, "gate_up_proj") != NULL;
        int64_t width = pair ? row->shape[2] / 2 : row->shape[2];
        for (int64_t e = 0; e < row->shape[0]; e++) {
            list[n++] = expert_piece(row, e, pair ? "gate" : "down", 0, width);
            if (pair)
                list[n++] = expert_piece(row, e, "up", width, width);
        }
    }
    *out = list;
    *out_n = n;
    return ST_OK;
}
