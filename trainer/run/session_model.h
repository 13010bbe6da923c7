/* session_model.h: the model of a session and its values. Internal to session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_MODEL_H
#define TESSERA_TRAINER_RUN_SESSION_MODEL_H

#include "trainer/run/session.h"

/* Dimensions and the registry: what of it this rank of the mesh holds, and what is trained. */
WARN_UNUSED status session_model(session *s);
/* Memory of the parameters, and their values: of the checkpoint s->from, of files, or new ones. */
WARN_UNUSED status session_values(session *s);

#endif
