/* layout.h: the degrees of a configuration (design section 7), checked against each other. */
#ifndef TESSERA_PARALLEL_LAYOUT_H
#define TESSERA_PARALLEL_LAYOUT_H

#include "common/conf.h"

typedef struct layout {
    int64_t replicate, shard, context, tensor, pipeline; /* their product is world */
    int64_t expert, expert_tensor;                       /* re-divide shard x context x tensor */
    int64_t world;
    int64_t accumulation; /* micro-steps per step */
} layout;

/* ST_CONFIG names the degrees that do not fit each other, or the batch that does not fit them. */
WARN_UNUSED status layout_of(const conf *c, layout *out);

#endif
