/* SPDX-License-Identifier: Apache-2.0 */
/* test_rank_link_find.c: the host and port at which rank 0 listens, from the options and from the
 * variables of the launcher. Two jobs on one machine must not choose the same port. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/link/rank_link_find.h"

static const char *const known[] = {"MASTER_ADDR",
                                    "MASTER_PORT",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_NODELIST",
                                    "PMIX_NAMESPACE",
                                    "OMPI_MCA_ess_base_jobid",
                                    "TORCHELASTIC_USE_AGENT_STORE"};

static int forget_variables(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    return 0;
}

static rank_link_place found(bool one_machine)
{
    rank_link_place place;
    assert_ok(rank_link_find(one_machine, &place));
    return place;
}

static int port_with(const char *variable, const char *value)
{
    setenv(variable, value, 1);
    const int port = found(true).port;
    unsetenv(variable);
    return port;
}

/* Two jobs have ports of their own, below those of outgoing connections and not torchrun's. */
static void expect_two_ports(const char *variable, const char *job, const char *other)
{
    const int port = port_with(variable, job), next = port_with(variable, other);
    assert_in_range(port, 20000, 29499);
    assert_in_range(next, 20000, 29499);
    assert_int_not_equal(port, next);
    assert_int_equal(port, port_with(variable, job)); /* all ranks compute the same */
}

static void test_jobs_of_slurm_have_ports_of_their_own(void **state)
{
    (void)state;
    expect_two_ports("SLURM_JOB_ID", "4711", "4712");
}

static void test_jobs_of_mpirun_have_ports_of_their_own(void **state)
{
    (void)state;
    expect_two_ports("OMPI_MCA_ess_base_jobid", "3735945217", "3736010753");      /* version 4 */
    expect_two_ports("PMIX_NAMESPACE", "prterun-vm-1234@1", "prterun-vm-1235@1"); /* version 5 */
}

static void test_two_mpiruns_within_one_slurm_job_have_ports_of_their_own(void **state)
{
    (void)state;
    setenv("SLURM_JOB_ID", "4711", 1);
    expect_two_ports("PMIX_NAMESPACE", "prterun-vm-1234@1", "prterun-vm-1235@1");
    const int of_slurm = found(true).port;
    assert_int_equal(port_with("PMIX_NAMESPACE", "slurm.pmix.4711.0"), of_slurm);
}

static void test_what_is_set_goes_before_what_is_found(void **state)
{
    (void)state;
    assert_int_equal(found(true).port, 29500);
    setenv("PMIX_NAMESPACE", "prterun-vm-1234@1", 1);
    setenv("MASTER_PORT", "1234", 1);
    setenv("MASTER_ADDR", "first", 1);
    assert_int_equal(found(true).port, 1234);
    assert_string_equal(found(true).host, "first");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    assert_int_equal(found(true).port, 1235);
}

static void test_ranks_on_several_machines_need_the_first_ones_name(void **state)
{
    (void)state;
    rank_link_place place;
    assert_string_equal(found(true).host, "127.0.0.1");
    assert_fails(ST_CONFIG, rank_link_find(false, &place), "set MASTER_ADDR");
    setenv("SLURM_STEP_NODELIST", "node[03-04,7]-x,other", 1);
    assert_string_equal(found(false).host, "node03-x");
    setenv("SLURM_STEP_NODELIST", "a,b", 1);
    assert_string_equal(found(false).host, "a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_jobs_of_slurm_have_ports_of_their_own, forget_variables),
        cmocka_unit_test_setup(test_jobs_of_mpirun_have_ports_of_their_own, forget_variables),
        cmocka_unit_test_setup(test_two_mpiruns_within_one_slurm_job_have_ports_of_their_own,
                               forget_variables),
        cmocka_unit_test_setup(test_what_is_set_goes_before_what_is_found, forget_variables),
        cmocka_unit_test_setup(test_ranks_on_several_machines_need_the_first_ones_name,
                               forget_variables),
    };
    return cmocka_run_group_tests_name("rank link find", tests, NULL, NULL);
}
