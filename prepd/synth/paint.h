/* paint.h: paints a scene: a textured and lit background, like the blurred ground of a photograph;
 * on it saturated, shaded shapes with soft shadows; and a little sensor noise over all. */
#ifndef TESSERA_PREPD_SYNTH_PAINT_H
#define TESSERA_PREPD_SYNTH_PAINT_H

#include "prepd/synth/scene.h"

/* Writes rgb [height, width, 3]. canvas [height, width, 3] is scratch. Both are the caller's. */
void scene_paint(const scene *from, float *canvas, uint8_t *rgb);

#endif
