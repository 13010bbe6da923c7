/* SPDX-License-Identifier: Apache-2.0 */
/* nf4_table.h: the values of NF4's codes as published, with which tests compare the product's own
 * table. Dettmers et al. 2023, arXiv:2305.14314, appendix E. */
#ifndef TESSERA_TESTS_NF4_TABLE_H
#define TESSERA_TESTS_NF4_TABLE_H

static const double nf4_published[16] = {-1.0,
                                         -0.6961928009986877,
                                         -0.5250730514526367,
                                         -0.39491748809814453,
                                         -0.28444138169288635,
                                         -0.18477343022823334,
                                         -0.09105003625154495,
                                         0.0,
                                         0.07958029955625534,
                                         0.16093020141124725,
                                         0.24611230194568634,
                                         0.33791524171829224,
                                         0.44070982933044434,
                                         0.5626170039176941,
                                         0.7229568362236023,
                                         1.0};

#endif
