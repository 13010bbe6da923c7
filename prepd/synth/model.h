/* model.h: the model folder of a generated data set: configuration, tokenizer and processor
 * settings of a small Qwen3-VL MoE model. It has no weights, because training starts from scratch.
 */
#ifndef TESSERA_PREPD_SYNTH_MODEL_H
#define TESSERA_PREPD_SYNTH_MODEL_H

#include <stdint.h>

#include "common/base/status.h"

/* Writes config.json, generation_config.json, preprocessor_config.json,
 * video_preprocessor_config.json, tokenizer.json and tokenizer_config.json into an existing folder.
 * min_pixels and max_pixels bound the area of a picture after resizing. */
WARN_UNUSED status model_write(const char *folder, int64_t min_pixels, int64_t max_pixels);

#endif
