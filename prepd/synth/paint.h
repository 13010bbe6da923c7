/* paint.h: a scene as a picture: a textured, lit background like a photograph's out-of-focus
 * ground, saturated shaded shapes with soft shadows on it, and a little sensor noise. */
#ifndef TESSERA_PREPD_SYNTH_PAINT_H
#define TESSERA_PREPD_SYNTH_PAINT_H

#include "prepd/synth/scene.h"

/* canvas [height, width, 3] f32, scratch; rgb [height, width, 3] u8, written. Both the caller's. */
void scene_paint(const scene *s, float *canvas, uint8_t *rgb);

#endif
