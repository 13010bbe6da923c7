/* config_changes.h: finds the options in which a run differs from the checkpoint it goes on
 * from. */
#ifndef TESSERA_TRAINER_RUN_CONFIG_CHANGES_H
#define TESSERA_TRAINER_RUN_CONFIG_CHANGES_H

#include "common/conf/conf.h"

/* Every option as "key: value", one on a line (conf_print). *out is on the heap; the caller frees
 * it. */
WARN_UNUSED status config_text(const conf *options, char **out);

/* Compares two such texts and calls `each` for every option of `now` whose value differs. was: the
 * old value, "" if the old text has no such option. Options that begin with job. or checkpoint.
 * are passed over: they say where and how often a run is kept, and change no step. */
typedef void (*config_change)(void *user, const char *key, const char *was, const char *now);
void config_changes(const char *was, const char *now, config_change each, void *user);

#endif
