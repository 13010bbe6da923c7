/* beneath.h: opens files below a folder, and never a file outside it, whatever links lie there.
 *
 * The folder itself is the one that the user named: it may be a link, or lie below one. Below it, a
 * link is followed if it is relative and stays below the folder; a link that is absolute, that
 * climbs out or that leads through /proc is refused. Where the kernel has no openat2 (before 5.6),
 * or a filter of system calls refuses it, no link is followed at all. File systems that are mounted
 * below the folder belong to it. */
#ifndef TESSERA_PREPD_DATASET_BENEATH_H
#define TESSERA_PREPD_DATASET_BENEATH_H

/* Opens `path`, which is relative to `folder`, with the flags of open(2) and O_CLOEXEC. Returns a
 * descriptor, or -1 with errno: EXDEV if a link leads out of the folder or the path climbs. */
int beneath_open(const char *folder, const char *path, int flags);
/* What beneath_open does where there is no openat2: it opens each folder on the way by itself and
 * follows no link. */
int beneath_walk(const char *folder, const char *path, int flags);

#endif
