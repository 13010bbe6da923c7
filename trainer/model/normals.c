/* normals.c: see normals.h. Letters: u, v the two uniform values of a normal one. */
#include "trainer/model/normals.h"

#include <math.h>

static normals_uniform *uniform_here(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return normals_uniform_avx2;
#endif
    return 0;
}

void normals_draw(rng_key key, uint64_t first, int64_t count, double *out)
{
    normals_uniform *const uniform = uniform_here();
    int64_t done = 0;
    double u[NORMALS_BATCH], v[NORMALS_BATCH];
    for (; uniform && count - done >= NORMALS_BATCH; done += NORMALS_BATCH) {
        uniform(key, first + (uint64_t)done, u, v);
        for (int i = 0; i < NORMALS_BATCH; i++)
            u[i] = sqrt(-2.0 * log(u[i]));
        for (int i = 0; i < NORMALS_BATCH; i++)
            out[done + i] = u[i] * cos(2.0 * M_PI * v[i]);
    }
    for (; done < count; done++)
        out[done] = rng_normal(key, first + (uint64_t)done);
}
