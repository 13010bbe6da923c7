/* SPDX-License-Identifier: Apache-2.0 */
/* plan_setting.h: what tests of the plan share: a run to plan, numbers that are compared, and
 * the groups of tests that test_cost runs. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_PLAN_SETTING_H
#define TESSERA_TESTS_UNIT_TRAINER_PLAN_SETTING_H

#include "trainer/plan/cost.h"
#include "trainer/plan/layout_plan.h"

typedef struct setting {
    conf options;
    model_dims dims;
    params *registry;
    rates speeds;
    plan_device device;
} setting;

/* Opens 32 rows of 8,192 tokens a step, one a micro-batch, of a model (dims_preset) on an H200 with
 * its built-in rates; close_setting frees it. */
void open_setting(setting *setup, const char *preset);
void close_setting(setting *setup);
/* Borrows both; degrees may be NULL. */
plan_input input_of(const setting *setup, const layout *degrees);
/* Fails the test if the numbers differ by more than this share of the second. */
void expect_share(double first, double second, double share);

/* Each returns the number of tests that failed. */
int run_rates_tests(void);
int run_recompute_tests(void);
int run_sweep_tests(void);

#endif
