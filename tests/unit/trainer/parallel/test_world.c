/* SPDX-License-Identifier: Apache-2.0 */
/* test_world.c: which rank a process is, according to the variables of the launcher that started
 * it. */
#include "tests/harness.h"

#include <stdlib.h>

#include "trainer/parallel/world.h"

static const char *const known[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "OMPI_COMM_WORLD_LOCAL_RANK",
                                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                                    "SLURM_STEP_ID",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "SLURM_NTASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "CUDA_VISIBLE_DEVICES"};

static int forget_variables(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    return 0;
}

static void set(const char *words) /* "A=1 B=2" */
{
    char copy[512], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        *value++ = 0;
        setenv(word, value, 1);
    }
}

static void expect_place(int rank, int size, int local_rank, int local_size, const char *source)
{
    world_place place;
    assert_int_equal(world_place_find(&place), ST_OK);
    assert_int_equal(place.rank, rank);
    assert_int_equal(place.size, size);
    assert_int_equal(place.local_rank, local_rank);
    assert_int_equal(place.local_size, local_size);
    assert_string_equal(place.source, source);
}

static void refuse_place(const char *words, const char *said)
{
    world_place place;
    forget_variables(NULL);
    set(words);
    assert_int_equal(world_place_find(&place), ST_CONFIG);
    if (!strstr(status_text(), said))
        fail_msg("\"%s\" does not say \"%s\"", status_text(), said);
}

static void test_place__without_a_launcher(void **state)
{
    (void)state;
    expect_place(0, 1, 0, 1, "no launcher's variables");
}

static void test_place__each_launcher(void **state)
{
    (void)state;
    set("RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4");
    expect_place(5, 16, 1, 4, "torchrun's variables");
    forget_variables(NULL);
    set("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3 "
        "OMPI_COMM_WORLD_LOCAL_SIZE=8");
    expect_place(3, 8, 3, 8, "mpirun's variables");
    forget_variables(NULL);
    set("SLURM_STEP_ID=0 SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=16 SLURM_NTASKS=32 SLURM_LOCALID=1 "
        "SLURM_STEP_TASKS_PER_NODE=8(x2)");
    expect_place(9, 16, 1, 8, "Slurm's variables");
    forget_variables(NULL);
    set("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1");
    expect_place(1, 2, 0, 1, "PMI's variables");
}

/* The process of a Slurm batch script itself is not a rank, and mpirun inside a Slurm job overrides
 * Slurm's variables. */
static void test_place__the_batch_script_is_not_a_rank(void **state)
{
    (void)state;
    set("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0");
    expect_place(0, 1, 0, 1, "no launcher's variables");
    set("SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 "
        "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2");
    expect_place(3, 4, 1, 2, "mpirun's variables");
}

static void test_place__wrong_variables_are_named(void **state)
{
    (void)state;
    refuse_place("RANK=0", "RANK is set but WORLD_SIZE is not");
    refuse_place("RANK=x WORLD_SIZE=2", "RANK is \"x\"");
    refuse_place("RANK=-1 WORLD_SIZE=2", "RANK is \"-1\"");
    refuse_place("RANK=2 WORLD_SIZE=2", "RANK is 2, but WORLD_SIZE is 2");
    refuse_place("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is \"0\"");
    refuse_place("RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is \"9999");
    refuse_place("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not");
}

/* The GPU of a rank is its local rank, except where Slurm shows each task only the one GPU bound to
 * it. */
static void expect_gpu(const char *words, int gpu)
{
    world_place place;
    forget_variables(NULL);
    set(words);
    assert_int_equal(world_place_find(&place), ST_OK);
    assert_int_equal(world_gpu(&place), gpu);
}

static void test_place__has_its_gpu(void **state)
{
    (void)state;
    expect_gpu("RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", 1);
    expect_gpu("RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 CUDA_VISIBLE_DEVICES=3", 1);
    const char *slurm = "SLURM_STEP_ID=0 SLURM_PROCID=9 SLURM_NTASKS=16 SLURM_LOCALID=3 "
                        "SLURM_STEP_TASKS_PER_NODE=8(x2)";
    char words[512];
    expect_gpu(slurm, 3);
    snprintf(words, sizeof words, "%s CUDA_VISIBLE_DEVICES=0,1,2,3", slurm);
    expect_gpu(words, 3);
    snprintf(words, sizeof words, "%s CUDA_VISIBLE_DEVICES=3", slurm);
    expect_gpu(words, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_place__without_a_launcher, forget_variables),
        cmocka_unit_test_setup(test_place__each_launcher, forget_variables),
        cmocka_unit_test_setup(test_place__the_batch_script_is_not_a_rank, forget_variables),
        cmocka_unit_test_setup(test_place__wrong_variables_are_named, forget_variables),
        cmocka_unit_test_setup(test_place__has_its_gpu, forget_variables),
    };
    return cmocka_run_group_tests_name("world", tests, NULL, NULL);
}
