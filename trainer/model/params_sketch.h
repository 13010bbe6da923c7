/* params_sketch.h: what a rank of any layout would hold and store, computed without a device and
 * without the other ranks. Memory plans use it to compare layouts. */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_SKETCH_H
#define TESSERA_TRAINER_MODEL_PARAMS_SKETCH_H

#include "trainer/model/params.h"

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
