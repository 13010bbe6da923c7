/* adapter.h: the adapters of a registry (model/lora_params.h) as a folder that PEFT loads:
 * adapter_config.json and adapter_model.safetensors (F32).
 *
 * Linear maps: base_model.model.MODULE.lora_A.weight [r, in], lora_B.weight [out, r]. Fused experts
 * are "target_parameters": lora_A [E r, in], expert by expert, and lora_B [out, r E], rank by rank;
 * of two in one module the first is its base_layer. Per-expert files (text-only models) have linear
 * maps, whose gate and up share their A. */
#ifndef TESSERA_CHECKPOINT_ADAPTER_H
#define TESSERA_CHECKPOINT_ADAPTER_H

#include "trainer/model/params.h"

#define ADAPTER_FOLDER "adapter" /* within a checkpoint's */

/* base: the model they belong to, as the configuration names it. folder is made if absent; nothing
 * is written of a registry without adapters. */
WARN_UNUSED status adapter_export(const params *p, stream *s, const char *base, const char *folder);

#endif
