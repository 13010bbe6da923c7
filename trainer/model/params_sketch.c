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

status params_sketch_new(const params *registry, const model_dims *dims, const layout *degrees,
                         int rank, bool reshard, params **out)
{
    sketch *outline = calloc(1, sizeof *outline);
    param *list = malloc((size_t)(registry->count > 0 ? registry->count : 1) * sizeof *list);
    params_sizes size;
    status st = ST_OK;
    if (!outline || !list) {
        free(outline);
        free(list);
        return FAIL(ST_NO_MEMORY, "no memory for the parameters of a layout");
    }
    memcpy(list, registry->list, (size_t)registry->count * sizeof *list);
    outline->params = *registry;
    outline->params.list = list;
    outline->params.spans = NULL;
    layout stage = *degrees; /* one pipeline stage; its ranks have consecutive numbers */
    stage.pipeline = 1;
    stage.world = degrees->world / degrees->pipeline;
    mesh_sketch(&stage, rank % (int)stage.world, &outline->mesh);
    outline->mesh.layout = *degrees;
    outline->mesh.rank = rank;
    outline->mesh.place.pipeline = rank / (int)stage.world;
    params *own = &outline->params;
    if (degrees->world > 1) {
        st = params_cut(own, dims, degrees, outline->mesh.place);
        params_share(own, &outline->mesh, reshard);
    }
    if (st == ST_OK)
        st = params_size(own, &any, true, &size);
    if (st != ST_OK)
        params_sketch_free(&own);
    else
        *out = own;
    return st;
}

void params_sketch_free(params **registry)
{
    if (!*registry)
        return;
    free((*registry)->spans);
    free((*registry)->list);
    free(*registry);
    *registry = NULL;
}
