/* params_sketch.c: a copy of the registry for a rank that need not exist (params_sketch.h). */
#include "trainer/model/params_sketch.h"

#include <stdlib.h>
#include <string.h>

typedef struct sketch {
    params params; /* first, so that the caller's pointer is also that of the sketch */
    mesh mesh;
} sketch;

/* params_size needs the dtypes of a backend; the spans do not depend on them. */
static const backend_vtable any = {.act = DT_BF16, .acc = DT_F32};

status params_sketch_new(const params *p, const model_dims *dims, const layout *l, int rank,
                         bool reshard, params **out)
{
    sketch *k = calloc(1, sizeof *k);
    param *list = malloc((size_t)(p->count > 0 ? p->count : 1) * sizeof *list);
    params_sizes size;
    status st = ST_OK;
    if (!k || !list) {
        free(k);
        free(list);
        return FAIL(ST_NO_MEMORY, "no memory for the parameters of a layout");
    }
    memcpy(list, p->list, (size_t)p->count * sizeof *list);
    k->params = *p;
    k->params.list = list;
    k->params.spans = NULL;
    layout stage = *l; /* one pipeline stage; its ranks have consecutive numbers */
    stage.pipeline = 1;
    stage.world = l->world / l->pipeline;
    mesh_sketch(&stage, rank % (int)stage.world, &k->mesh);
    k->mesh.layout = *l;
    k->mesh.rank = rank;
    k->mesh.place.pipeline = rank / (int)stage.world;
    params *own = &k->params;
    if (l->world > 1) {
        st = params_cut(own, dims, l, k->mesh.place);
        params_share(own, &k->mesh, reshard);
    }
    if (st == ST_OK)
        st = params_size(own, &any, true, &size);
    if (st != ST_OK)
        params_sketch_free(&own);
    else
        *out = own;
    return st;
}

void params_sketch_free(params **p)
{
    if (!*p)
        return;
    free((*p)->spans);
    free((*p)->list);
    free(*p);
    *p = NULL;
}
