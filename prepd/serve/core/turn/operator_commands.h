/* SPDX-License-Identifier: Apache-2.0 */
/* operator_commands.h: what arrives at the control endpoint. */
#ifndef TESSERA_PREPD_SERVE_CORE_TURN_OPERATOR_COMMANDS_H
#define TESSERA_PREPD_SERVE_CORE_TURN_OPERATOR_COMMANDS_H

#include "prepd/serve/core/state/dispatch_state.h"

/* Handles a message from the control endpoint. */
WARN_UNUSED status operator_command(dispatch *state, const wire_peer *from, const wire_msg *message,
                                    const char *name);

#endif
