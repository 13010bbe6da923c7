/* params_sketch.h: what a rank of any layout would hold and store, known without a device and
 * without the other ranks: for plans. */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_SKETCH_H
#define TESSERA_TRAINER_MODEL_PARAMS_SKETCH_H

#include "trainer/model/params.h"

/* p: the registry behind groups_apply, not cut. l: of a pipeline with its stage_end. *out: a copy
 * of it, cut and shared as params_cut and params_share do for that rank, with its spans
 * (params_size has been asked); one rank has no mesh, and a mesh's groups are those within a stage.
 * Never to be allocated. ST_CONFIG as layout_check. */
WARN_UNUSED status params_sketch_new(const params *p, const model_dims *d, const layout *l,
                                     int rank, bool reshard, params **out);
void params_sketch_free(params **p); /* accepts NULL in it */

#endif
