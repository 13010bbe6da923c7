/* memory_text.h: bytes as people read them. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_TEXT_H
#define TESSERA_TRAINER_PLAN_MEMORY_TEXT_H

#include <stdint.h>

/* Writes bytes as "43.4 GiB", "118.0 MiB" or "0.5 KiB", and returns out. */
enum { MEMORY_BYTES_TEXT = 32 };
const char *memory_bytes_text(int64_t bytes, char out[MEMORY_BYTES_TEXT]);

#endif
