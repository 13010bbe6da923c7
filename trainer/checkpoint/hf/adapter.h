/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.h: writes the LoRA adapters of a registry (model/params/lora_params.h) as a folder that the PEFT
 * library loads: adapter_config.json and adapter_model.safetensors (F32).
 *
 * A linear map has base_model.model.MODULE.lora_A.weight [r, in] and .lora_B.weight [out, r].
 * Models with a vision tower have their experts in fused tensors, which PEFT (0.19 and later) calls
 * "target_parameters". PEFT takes the last axis of such a tensor for what goes in, and the two
 * series of transformers store the tensor differently, so the files differ too:
 *
 *                    transformers 4.57                  transformers 5
 *   stored matrix    [E, in, out]                       [E, out, in]
 *   lora_A, lora_B   [E r, out], [in, r E]: exchanged   [E r, in], [out, r E]
 *   router           a linear map                       a parameter, of the same two shapes
 *
 * Rows of A go expert by expert, columns of B go rank by rank (the r of the adapter, not a
 * process). If two parameters are in one module, the first one is named as its base_layer.
 *
 * If in = out, the shapes of both series are the same and the wrong series would load the file
 * and compute with it. Then the other parameter of those experts, whose shapes differ between the
 * series, is written as well, with zeros if it has no adapter, so that the wrong series fails to
 * load.
 *
 * Text-only models have one linear map per expert, and gate and up share their A. That form serves
 * both series: PEFT fuses the maps for transformers 5, while 4.57 would silently leave out fused
 * ones. */
#ifndef TESSERA_TRAINER_CHECKPOINT_HF_ADAPTER_H
#define TESSERA_TRAINER_CHECKPOINT_HF_ADAPTER_H

#include "trainer/model/params/params.h"

#define ADAPTER_FOLDER "adapter" /* within a checkpoint's folder */

/* In the order of the values of lora.adapter_for. */
typedef enum adapter_reader { ADAPTER_TRANSFORMERS_4, ADAPTER_TRANSFORMERS_5 } adapter_reader;

/* Writes both files into `folder`, which is created if it does not exist; does nothing for a
 * registry without adapters. Values are read from the device on `queue`, or from lora_gather's host
 * memory if ranks share them. base: the model that the adapters belong to, as the configuration
 * names it. ST_CANT_CREATE or ST_IO names the file. */
WARN_UNUSED status adapter_export(const params *registry, stream *queue, const char *base,
                                  adapter_reader reader, const char *folder);

#endif
