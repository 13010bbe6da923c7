/* SPDX-License-Identifier: Apache-2.0 */
/* memory_tests.h: the groups of tests beside test_memory.c, which runs them all. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_PLAN_MEMORY_TESTS_H
#define TESSERA_TESTS_UNIT_TRAINER_PLAN_MEMORY_TESTS_H

/* Each returns the number of tests that failed. */
int run_plan_device_tests(void);
int run_gpu_memory_tests(void);
int run_layout_plan_tests(void);

#endif
