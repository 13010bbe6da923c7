/* SPDX-License-Identifier: Apache-2.0 */
/* plan_setting.c: see plan_setting.h. */
#include "tests/unit/trainer/plan/plan_setting.h"

#include <math.h>

#include "tests/harness.h"

plan_input input_of(const setting *setup, const layout *degrees)
{
    return (plan_input){.conf = &setup->options,
                        .layout = degrees,
                        .dims = &setup->dims,
                        .params = setup->registry,
                        .device = &setup->device};
}

void open_setting(setting *setup, const char *preset)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    assert_ok(conf_load(&setup->options, &argc, argv));
    setup->options.training_seq_len = 8192;
    setup->options.training_global_batch_size = 32;
    setup->options.training_local_batch_size = 1;
    setup->options.parallelism_world_size = 0;
    assert_ok(dims_preset(preset, &setup->dims));
    assert_ok(params_new(&setup->dims, &setup->registry));
    setup->speeds = rates_h200();
    assert_ok(plan_device_named("h200", &setup->device));
}

void close_setting(setting *setup)
{
    params_free(&setup->registry);
    conf_done(&setup->options);
}

void expect_share(double first, double second, double share)
{
    if (fabs(first - second) > share * fabs(second))
        fail_msg("%.15g is not %.15g", first, second);
}
