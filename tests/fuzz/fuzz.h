/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h: what the fuzz targets share: the entry point that libFuzzer and replay.c call, and a
 * check that also works in builds without asserts. */
#ifndef TESSERA_TESTS_FUZZ_H
#define TESSERA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that must hold for every input. If it does not, this prints the condition and the last
 * error, and aborts. */
#define FUZZ_HOLDS(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s (%s)\n", __FILE__, __LINE__, #condition,     \
                    status_text());                                                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
