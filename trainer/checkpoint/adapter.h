/* adapter.h: the adapters of a registry (model/lora_params.h) as a folder that PEFT loads:
 * adapter_config.json and adapter_model.safetensors (F32).
 *
 * Linear maps: base_model.model.MODULE.lora_A.weight [r, in], lora_B.weight [out, r]. Models with
 * vision have fused experts, "target_parameters", of which PEFT (0.19 and later) takes the last
 * axis for what goes in:
 *
 *                    transformers 4.57                  the 5 series
 *   matrices         [E, in, out]                       [E, out, in]
 *   lora_A, lora_B   [E r, out], [in, r E]: exchanged   [E r, in], [out, r E]
 *   router           a linear map                       a parameter, of the same two shapes
 *
 * Rows of A expert by expert, columns of B rank by rank; of two parameters in one module the first
 * is its base_layer. Where in = out the shapes of both are the same, and the wrong version would
 * compute with them; the other parameter of those experts, whose shapes differ, is then written
 * too, with zeros where it has no adapter: loading it under the wrong version fails.
 *
 * Text-only models have linear maps per expert, whose gate and up share their A, for either
 * version: PEFT fuses them for the 5 series. (4.57 would leave out fused ones without a word.) */
#ifndef TESSERA_TRAINER_CHECKPOINT_ADAPTER_H
#define TESSERA_TRAINER_CHECKPOINT_ADAPTER_H

#include "trainer/model/params.h"

#define ADAPTER_FOLDER "adapter" /* within a checkpoint's */

/* In the order of lora.adapter_for. */
typedef enum adapter_reader { ADAPTER_TRANSFORMERS_4, ADAPTER_TRANSFORMERS_5 } adapter_reader;

/* base: the model they belong to, as the configuration names it. folder is made if absent; nothing
 * is written of a registry without adapters. */
WARN_UNUSED status adapter_export(const params *p, stream *s, const char *base,
                                  adapter_reader reader, const char *folder);

#endif
