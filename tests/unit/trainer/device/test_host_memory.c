/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_memory.c: how much memory a machine and the cgroups of a process leave to it, read from
 * files in a folder that the test writes. */
#include "tests/harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/device/host_memory.h"

static const size_t MIB = 1 << 20;

/* Writes a file below the folder, and makes the folders on the way to it. */
static void put(const char *folder, const char *path, const char *form, ...)
{
    char at[4096];
    va_list args;
    snprintf(at, sizeof at, "%s/%s", folder, path);
    *strrchr(at, '/') = 0;
    assert_ok(file_make_folders(at));
    at[strlen(at)] = '/';
    FILE *file = fopen(at, "w");
    assert_non_null(file);
    va_start(args, form);
    vfprintf(file, form, args);
    va_end(args);
    fclose(file);
}

static char *machine(const char *groups)
{
    char *folder = harness_temp();
    put(folder, "proc/meminfo", "MemTotal: %zu kB\nMemFree: 5 kB\nMemAvailable: %zu kB\n",
        8000 * (size_t)1024, 6000 * (size_t)1024);
    put(folder, "proc/sys/kernel/random/boot_id", "a-boot\n");
    put(folder, "proc/self/cgroup", "%s", groups);
    return folder;
}

/* Writes the files of a cgroup of version 2 with these sizes in MiB; limit 0: it has none. */
static void group(const char *folder, const char *path, size_t limit, size_t used, size_t cache)
{
    char at[4096];
    snprintf(at, sizeof at, "sys/fs/cgroup%s/memory.max", path);
    if (limit)
        put(folder, at, "%zu\n", limit * MIB);
    else
        put(folder, at, "max\n");
    snprintf(at, sizeof at, "sys/fs/cgroup%s/memory.current", path);
    put(folder, at, "%zu\n", used * MIB);
    snprintf(at, sizeof at, "sys/fs/cgroup%s/memory.stat", path);
    put(folder, at, "anon 5\ninactive_file %zu\nactive_file 7\n", cache * MIB);
}

static host_memory read_and_remove(char *folder, size_t total, size_t available)
{
    host_memory memory;
    assert_ok(host_memory_read(folder, &memory));
    assert_int_equal(memory.total, total * MIB);
    assert_int_equal(memory.available, available * MIB);
    assert_string_equal(memory.machine, "a-boot");
    harness_remove(&folder);
    return memory;
}

static void test_host_memory__without_limits_is_the_machine_s(void **state)
{
    (void)state;
    char *folder = machine("0::/user/job\n");
    group(folder, "/user/job", 0, 100, 0);
    assert_string_equal(read_and_remove(folder, 8000, 6000).group, "");
}

static void test_host_memory__the_least_limit_counts(void **state)
{
    (void)state;
    char *folder = machine("0::/user/job\n");
    group(folder, "/user/job", 4000, 1500, 500);
    assert_non_null(strstr(read_and_remove(folder, 4000, 3000).group, "/sys/fs/cgroup/user/job"));
    /* Part of the parent's limit is taken by others. */
    folder = machine("0::/user/job\n");
    group(folder, "/user/job", 4000, 1500, 500);
    group(folder, "/user", 5000, 4500, 0);
    read_and_remove(folder, 4000, 500);
    folder = machine("0::/user/job\n");
    group(folder, "/user", 3000, 3500, 0); /* more is used than allowed */
    read_and_remove(folder, 3000, 0);
    folder = machine("0::/user/job\n");
    group(folder, "/user/job", 9000, 100, 0); /* more than the machine has */
    read_and_remove(folder, 8000, 6000);
}

/* In a container the group's own path is not mounted; its files are at the root of the mount. */
static void test_host_memory__a_container_has_its_limit_at_the_root(void **state)
{
    (void)state;
    char *folder = machine("0::/docker/1234\n");
    group(folder, "", 2000, 300, 0);
    read_and_remove(folder, 2000, 1700);
}

static void test_host_memory__version_1(void **state)
{
    (void)state;
    char *folder = machine("9:name=systemd:/\n4:hugetlb,memory:/slurm/job\n1:cpu:/other\n");
    put(folder, "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "%zu\n", 1000 * MIB);
    put(folder, "sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "%zu\n", 400 * MIB);
    put(folder, "sys/fs/cgroup/memory/slurm/job/memory.stat",
        "inactive_file 1\ntotal_inactive_file %zu\n", 100 * MIB);
    put(folder, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(folder, "sys/fs/cgroup/memory/memory.usage_in_bytes", "%zu\n", 900 * MIB);
    read_and_remove(folder, 1000, 700);
}

static void test_host_memory__needs_proc(void **state)
{
    (void)state;
    host_memory memory;
    char *folder = harness_temp();
    assert_fails(ST_OS, host_memory_read(folder, &memory), "is /proc mounted?");
    harness_remove(&folder);
    assert_ok(host_memory_read("", &memory));
    assert_true(memory.total > MIB && memory.available > 0 && memory.available <= memory.total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_memory__without_limits_is_the_machine_s),
        cmocka_unit_test(test_host_memory__the_least_limit_counts),
        cmocka_unit_test(test_host_memory__a_container_has_its_limit_at_the_root),
        cmocka_unit_test(test_host_memory__version_1),
        cmocka_unit_test(test_host_memory__needs_proc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
