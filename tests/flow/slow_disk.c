/* slow_disk.c: preloaded (LD_PRELOAD), it plays a slow disk: each fsync of the rank
 * $TESSERA_SLOW_RANK begins $TESSERA_SLOW_MS milliseconds late. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fsync(int fd)
{
    const char *slow = getenv("TESSERA_SLOW_RANK"), *ms = getenv("TESSERA_SLOW_MS");
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    own = own ? own : getenv("RANK");
    if (slow && own && ms && strcmp(slow, own) == 0)
        nanosleep(
            &(struct timespec){.tv_sec = atoi(ms) / 1000, .tv_nsec = atoi(ms) % 1000 * 1000000},
            NULL);
    return (int)syscall(SYS_fsync, fd);
}
