/* session_model.h: the model of a session and its values. Internal to session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_MODEL_H
#define TESSERA_TRAINER_RUN_SESSION_MODEL_H

#include "trainer/run/session.h"

/* Reads the model's dimensions and makes the registry of parameters: which are trained, and which
 * part of them this rank holds. */
WARN_UNUSED status session_model(session *session);
/* Allocates the parameters and gives them their values: those of the checkpoint session->from,
 * those of weight files, or new ones drawn from training.seed. */
WARN_UNUSED status session_values(session *session);

#endif
