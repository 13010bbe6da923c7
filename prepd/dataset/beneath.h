/* beneath.h: opens what lies below a folder and never anything outside it, whatever links lie
 * there.
 *
 * The folder itself is what the user named: it may be a link, or lie below one. Below it a
 * link is followed where it is relative and stays below the folder; an absolute one, one that
 * climbs out and one of /proc are refused. Where the kernel has no openat2 (before 5.6), or a
 * filter of system calls refuses it, no link at all is followed. What is mounted below the folder
 * belongs to it. */
#ifndef TESSERA_PREPD_DATASET_BENEATH_H
#define TESSERA_PREPD_DATASET_BENEATH_H

/* path: relative. A descriptor, or -1 and errno: EXDEV where a link leads out, or the path climbs.
 */
int beneath_open(const char *folder, const char *path, int flags);
/* What it does where there is no openat2. */
int beneath_walk(const char *folder, const char *path, int flags);

#endif
