/* step_bench.h: what the tests of steps share: a recording, and a session of the debug model over
 * it on the CPU or on an emulated device. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_RUN_STEP_BENCH_H
#define TESSERA_TESTS_UNIT_TRAINER_RUN_STEP_BENCH_H

#include "common/conf/conf.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/run/step.h"

enum { STEPS = 9, ACCUMULATION = 2, LOCAL = 2, SEQ_LEN = 96, PATCHES = 160, ROWS = 6 };

/* What the daemon would name: the first holds the batches of rows 0, 1 and 4, 5, of which one has
 * video; rows 2 and 3 need the second. */
extern const bucket_list bench_buckets;
extern const bucket_list bench_no_buckets;

typedef struct bench {
    conf c;
    session s;
    backend_vtable fixed; /* the CPU on capacities, as the emulated device */
} bench;

/* Of fixture's model, in the folder; the path, heap. Each step gets other rows. */
char *bench_record(fixture *f, const char *folder);
/* ahead -1: the CPU, one step after the other; else emulated. scope: of captured steps, or "none".
 * Ends with session_close. */
void bench_open(bench *b, const char *recording, int ahead, const char *scope,
                const bucket_list *list);

#endif
