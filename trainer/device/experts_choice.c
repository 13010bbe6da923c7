/* experts_choice.c: chooses between Hopper's kernel and the portable one (experts_choice.h). */
#include "trainer/device/experts_choice.h"

#include "common/conf/conf.h"

enum { HOPPER = 90 }; /* wgmma, which that kernel is made of, exists on no other GPU */

status experts_choose(int wanted, int sm, bool *out_hopper)
{
    if (wanted == EXPERTS_HOPPER && sm != HOPPER)
        return FAIL(ST_UNAVAILABLE,
                    "training.experts hopper: the GPU has compute capability %d.%d, and that "
                    "kernel needs 9.0; leave the option at auto",
                    sm / 10, sm % 10);
    *out_hopper = sm == HOPPER && wanted != EXPERTS_PORTABLE;
    return ST_OK;
}
