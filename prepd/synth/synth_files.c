/* synth_files.c: the file operations of synth_files.h. */
#include "prepd/synth/synth_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status files_path(char out[FILES_PATH_MAX], const char *folder, const char *format, ...)
{
    char name[FILES_PATH_MAX];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (length < 0 || length >= FILES_PATH_MAX ||
        snprintf(out, FILES_PATH_MAX, "%s/%s", folder, name) >= FILES_PATH_MAX)
        return FAIL_IN(ST_BAD_INPUT, folder, "the path is longer than %d bytes", FILES_PATH_MAX);
    return ST_OK;
}

status files_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot create: %s", strerror(errno));
    size_t written = fwrite(data, 1, size, file);
    int closed = fclose(file);
    if (written != size || closed)
        return FAIL_IN(ST_IO, path, "cannot write %zu bytes: %s", size, strerror(errno));
    return ST_OK;
}

status files_write_json(const char *folder, const char *name, json_writer *writer)
{
    char path[FILES_PATH_MAX];
    char *text = NULL;
    size_t size;
    TRY(files_path(path, folder, "%s", name));
    TRY(json_writer_take(writer, &text, &size));
    status st = files_write(path, text, size);
    free(text);
    return st;
}

status files_make_folder(const char *path)
{
    char partial[FILES_PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial)
        return FAIL_IN(ST_BAD_INPUT, path, "the path must have 1 to %d bytes", FILES_PATH_MAX - 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        struct stat info;
        if (mkdir(partial, 0777) == 0)
            continue;
        if (errno != EEXIST)
            return FAIL_IN(ST_CANT_CREATE, partial, "cannot make the folder: %s", strerror(errno));
        if (stat(partial, &info) || !S_ISDIR(info.st_mode))
            return FAIL_IN(ST_CANT_CREATE, partial, "this exists and is not a folder");
    }
    return ST_OK;
}

status files_remove(const char *folder, const char *prefix)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? ST_OK : FAIL_IN(ST_IO, folder, "cannot read: %s", strerror(errno));
    status st = ST_OK;
    struct dirent *entry;
    while (st == ST_OK && (entry = readdir(dir))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) && errno != EISDIR && errno != ENOENT)
            st = FAIL_IN(ST_IO, folder, "cannot remove %s: %s", entry->d_name, strerror(errno));
    }
    closedir(dir);
    return st;
}
