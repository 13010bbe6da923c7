/* config_changes.h: in which options a run, or a part of it, differs from what a checkpoint says.
 */
#ifndef TESSERA_TRAINER_RUN_CONFIG_CHANGES_H
#define TESSERA_TRAINER_RUN_CONFIG_CHANGES_H

#include "common/conf/conf.h"

/* Every option as "key: value", one on a line (conf_print). Heap. */
WARN_UNUSED status config_text(const conf *c, char **out);

/* Of two such texts: calls `each` for the options of `now` that differ; was: the value then, ""
 * where there was no such option. job. and checkpoint., which say where a run is kept and how
 * often, are passed over: they change no step. */
typedef void (*config_change)(void *user, const char *key, const char *was, const char *now);
void config_changes(const char *was, const char *now, config_change each, void *user);

#endif
