/* yaml.h: the only door to YAML (libyaml): a file of nested mappings, handed out leaf by leaf.
 *
 * What options need and no more: mappings of scalars and of lists of scalars, nested up to 16
 * deep; keys of nested mappings are joined by dots. Refused, with the line: duplicate keys, aliases
 * (a few bytes of them can stand for gigabytes), several documents, lists of anything else or of
 * texts with a comma, NUL, files over 1 MiB. */
#ifndef TESSERA_COMMON_CONF_YAML_H
#define TESSERA_COMMON_CONF_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* One leaf; borrowed, valid during the call. */
typedef struct yaml_item {
    const char *key;  /* "training.seq_len" */
    const char *text; /* the scalar; of a list its items joined by commas */
    bool is_list;
    bool is_null; /* nothing, ~ or null, unquoted */
    int64_t line; /* of the key, from 1 */
} yaml_item;

typedef status (*yaml_each)(void *user, const yaml_item *item);

/* Calls each for every leaf in file order; a status other than ST_OK from it ends the reading and
 * is returned. An empty file has no leaves. ST_CONFIG if the file is not such YAML. */
WARN_UNUSED status yaml_read(const char *path, yaml_each each, void *user);
WARN_UNUSED status yaml_parse(const char *text, size_t size, const char *source, yaml_each each,
                              void *user);

#endif
