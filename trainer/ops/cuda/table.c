/* table.c: the CUDA backend's op table. An entry that is not named is empty: a call answers
 * "cuda has no op X", and auto chooses the CPU. */
#include "trainer/ops/table.h"

extern const ops_table ops_cuda;
const ops_table ops_cuda = {0};
