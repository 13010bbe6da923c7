/* SPDX-License-Identifier: Apache-2.0 */
/* serve_data.h: the data set that fuzz_serve.c serves, in two kinds. In the plain kind every sample
 * shows its own picture; in the other one several questions show one picture and begin alike
 * (data.group shared_prefix). */
#ifndef TESSERA_TESTS_FUZZ_SERVE_DATA_H
#define TESSERA_TESTS_FUZZ_SERVE_DATA_H

#include "prepd/plan/index.h"

enum { SERVE_SAMPLES = 60, SERVE_QUESTIONS = 4 /* on each picture, where they share it */ };

/* Which kind the data set is from now on. */
void serve_data_choose(bool shared);
dataset *serve_data(void);
/* The sealed index of the kind that is chosen. Its digest is the one that serve_seeds writes into
 * cursors (SERVE_INDEX, SERVE_SHARED_INDEX). */
data_index *serve_index(void);

#endif
