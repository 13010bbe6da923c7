/* SPDX-License-Identifier: Apache-2.0 */
/* base_blocks.c: the blocks in which a frozen base is kept (ops/weight_blocks.h), for comparisons
 * with other implementations (base_blocks_peers.py).
 *
 *   base_blocks nf4|int8 < VALUES > BLOCKS
 *
 * VALUES are float32, a multiple of 64 of them. */
#include <stdio.h>
#include <string.h>

#include "trainer/model/params/quantised.h"

int main(int argc, char **argv)
{
    const weight_form form = argc == 2 && strcmp(argv[1], "nf4") == 0 ? WEIGHT_NF4 : WEIGHT_INT8;
    float values[WEIGHT_BLOCK];
    uint8_t block[WEIGHT_SCALE + WEIGHT_BLOCK];
    while (fread(values, sizeof *values, WEIGHT_BLOCK, stdin) == WEIGHT_BLOCK) {
        if (!weight_encode(form, values, WEIGHT_BLOCK, block))
            return 1;
        fwrite(block, 1, (size_t)weight_block_bytes(form), stdout);
    }
    return fflush(stdout) != 0;
}
