/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.h: the trainer's verbs. Each takes the arguments after its name in argv[1..argc), of which
 * argv[0] is the name itself, and returns the status that becomes the program's exit code. */
#ifndef TESSERA_TRAINER_CLI_VERBS_H
#define TESSERA_TRAINER_CLI_VERBS_H

#include "common/base/status.h"

status verb_bench(int argc, char **argv);
status verb_train(int argc, char **argv);
status verb_eval(int argc, char **argv);
status verb_verify(int argc, char **argv);
status verb_check(int argc, char **argv);
status verb_plan(int argc, char **argv);
status verb_export(int argc, char **argv);
status verb_inspect(int argc, char **argv);

#endif
