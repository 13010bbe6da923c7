/* SPDX-License-Identifier: Apache-2.0 */
/* conf_defaults.h: a conf with the default of every option, for tests that set only a few
 * fields. */
#ifndef TESSERA_TESTS_UNIT_PREPD_CONF_DEFAULTS_H
#define TESSERA_TESTS_UNIT_PREPD_CONF_DEFAULTS_H

#include <string.h>

#include "common/conf/conf.h"

/* Enumerations stay 0, their first value, which is the default of all that prepd reads. */
static inline conf conf_defaults(void)
{
    conf options;
    memset(&options, 0, sizeof options);
#define OPTION_INT(section, name, value, ...)  options.section##_##name = value;
#define OPTION_REAL(section, name, value, ...) options.section##_##name = value;
#define OPTION_BOOL(section, name, value, ...) options.section##_##name = value;
#define OPTION_TEXT(section, name, value, ...) options.section##_##name = value;
#include "common/conf/options.def"
    options.place = "";
    return options;
}

#endif
