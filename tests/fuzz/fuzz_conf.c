/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_conf.c: any bytes as a configuration file. It must be refused, or give options that, printed
 * and loaded again, are the same. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/conf/conf.h"
#include "tests/fuzz/fuzz.h"

static status load_conf(const void *data, size_t size, conf *options)
{
    char path[64];
    int fd = memfd_create("conf", MFD_CLOEXEC);
    FUZZ_HOLDS(fd >= 0);
    FUZZ_HOLDS(write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    char *argv[] = {(char *)"fuzz", (char *)"-c", path, NULL};
    int argc = 3;
    status st = conf_load(options, &argc, argv);
    close(fd);
    return st;
}

static char *print_conf(const conf *options)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    FUZZ_HOLDS(file != NULL);
    conf_print(options, file);
    fclose(file);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    conf options, again;
    if (load_conf(data, size, &options) != ST_OK)
        return 0;
    char *first = print_conf(&options);
    FUZZ_HOLDS(load_conf(first, strlen(first), &again) == ST_OK);
    char *second = print_conf(&again);
    FUZZ_HOLDS(strcmp(first, second) == 0);
    free(first);
    free(second);
    conf_done(&options);
    conf_done(&again);
    return 0;
}
