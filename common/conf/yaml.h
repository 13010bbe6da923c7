/* SPDX-License-Identifier: Apache-2.0 */
/* yaml.h: reads a YAML file of nested mappings and calls back for every value. It is the only file
 * that includes libyaml's header (in yaml.c).
 *
 * It supports what options need and no more: mappings of scalars and of lists of scalars, nested up
 * to 16 deep. Keys of nested mappings are joined by dots. It refuses, naming the line: duplicate
 * keys, aliases (a few bytes of them can expand to gigabytes), several documents, lists of anything
 * but scalars, list items with a comma, NUL characters, and files of more than 1 MiB. */
#ifndef TESSERA_COMMON_CONF_YAML_H
#define TESSERA_COMMON_CONF_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* One value. Everything is borrowed and valid only during the call. */
typedef struct yaml_item {
    const char *key;  /* "training.seq_len" */
    const char *text; /* the scalar, or the items of a list joined by commas */
    bool is_list;
    bool is_null; /* the scalar is empty, ~ or null, without quotes */
    int64_t line; /* of the key, from 1 */
} yaml_item;

typedef status (*yaml_each)(void *user, const yaml_item *item);

/* A fault of one key, whose note is the thread's last one: reading goes on after it if this returns
 * ST_OK. */
typedef status (*yaml_fault)(void *user, status st);

/* Calls each(user, item) for every value in the order of the file. If it returns anything but
 * ST_OK, reading ends and that status is returned. Calls fault(user, st) for a key that appears
 * twice, whose second value is passed over; NULL: it ends the reading. An empty file has no values
 * and is accepted. ST_CONFIG: the file is not YAML of this kind; ST_NO_INPUT: it cannot be opened;
 * ST_IO: a read failed. */
WARN_UNUSED status yaml_read(const char *path, yaml_each each, yaml_fault fault, void *user);
/* The same for `size` bytes of text; errors name `source`. */
WARN_UNUSED status yaml_parse(const char *text, size_t size, const char *source, yaml_each each,
                              yaml_fault fault, void *user);

#endif
