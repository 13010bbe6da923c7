/* SPDX-License-Identifier: Apache-2.0 */
/* fault_shim.c: preloaded (LD_PRELOAD), it makes system calls on some files fail, as on a machine
 * in trouble. The call $FAULT_CALL (open, pread, read, mmap or statvfs) fails with $FAULT_ERRNO on
 * files whose path contains $FAULT_PATH, in `prepd $FAULT_VERB` or, if that is empty, in any
 * process; with $FAULT_ERRNO 0, pread and read report an end of the file that is none. It fails as
 * often as the number at the beginning of the file $FAULT_LEFT says, an int32 that all processes
 * share and count down. Whatever these say, a rank does not tell mpirun that it ends. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { MAX_FD = 4096 };

static int (*real_open)(const char *, int, ...);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_read)(int, void *, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static long (*real_syscall)(long, ...);
static int (*real_statvfs)(const char *, struct statvfs *);

static const char *call, *part;
static int error;
static int *left; /* NULL: no call of this process fails */
static bool marked[MAX_FD];

static bool is_verb(const char *verb)
{
    char line[4096] = "";
    FILE *file = fopen("/proc/self/cmdline", "r");
    const size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    const char *second = line + strlen(line) + 1;
    return verb && (!verb[0] || (second < line + got && strcmp(second, verb) == 0));
}

__attribute__((constructor)) static void begin(void)
{
    *(void **)&real_open = dlsym(RTLD_NEXT, "open");
    *(void **)&real_pread = dlsym(RTLD_NEXT, "pread");
    *(void **)&real_read = dlsym(RTLD_NEXT, "read");
    *(void **)&real_mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
    *(void **)&real_statvfs = dlsym(RTLD_NEXT, "statvfs");
    call = getenv("FAULT_CALL");
    part = getenv("FAULT_PATH");
    if (!call || !part || !getenv("FAULT_LEFT") || !is_verb(getenv("FAULT_VERB")))
        return;
    error = atoi(getenv("FAULT_ERRNO"));
    const int fd = real_open(getenv("FAULT_LEFT"), O_RDWR | O_CLOEXEC);
    void *shared = real_mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    left = shared == MAP_FAILED ? NULL : (int *)shared;
}

static bool fail_call(const char *name, bool hit)
{
    if (!left || !hit || strcmp(call, name) != 0)
        return false;
    if (__atomic_fetch_sub(left, 1, __ATOMIC_SEQ_CST) <= 0)
        return false;
    errno = error;
    return true;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    const bool hit = left && strstr(path, part);
    if (fail_call("open", hit))
        return -1;
    const int fd = real_open(path, flags, mode);
    if (fd >= 0 && fd < MAX_FD)
        marked[fd] = hit;
    return fd;
}

int statvfs(const char *path, struct statvfs *out)
{
    return fail_call("statvfs", left && strstr(path, part)) ? -1 : real_statvfs(path, out);
}

/* The C library has no function for openat2, so syscall() is replaced. A call with O_PATH does not
 * open the file and is left alone. */
long syscall(long number, ...)
{
    long argument[6];
    va_list args;
    va_start(args, number);
    for (int k = 0; k < 6; k++)
        argument[k] = va_arg(args, long);
    va_end(args);
    const bool opens =
        left && number == SYS_openat2 && !(((const struct open_how *)argument[2])->flags & O_PATH);
    if (fail_call("open", opens && strstr((const char *)argument[1], part)))
        return -1;
    return real_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                        argument[5]);
}

ssize_t pread(int fd, void *to, size_t count, off_t offset)
{
    if (fail_call("pread", fd >= 0 && fd < MAX_FD && marked[fd]))
        return error ? -1 : 0;
    return real_pread(fd, to, count, offset);
}

ssize_t read(int fd, void *to, size_t count)
{
    if (fail_call("read", fd >= 0 && fd < MAX_FD && marked[fd]))
        return error ? -1 : 0;
    return real_read(fd, to, count);
}

void *mmap(void *at, size_t count, int protect, int flags, int fd, off_t offset)
{
    if (fail_call("mmap", fd >= 0 && fd < MAX_FD && marked[fd]))
        return MAP_FAILED;
    return real_mmap(at, count, protect, flags, fd, offset);
}

/* A rank waits two seconds for mpirun's answer and then ends without it, which happens when the
 * machine is busy. This one does not even ask. */
int PMIx_Finalize(const void *info, size_t count);
int PMIx_Finalize(const void *info, size_t count)
{
    (void)info;
    (void)count;
    return 0;
}
