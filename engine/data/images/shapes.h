/* shapes.h - drawn pictures with classes: the data of a first run without files, and of tests.
 *
 * A picture shows one of DSC_SHAPES_CLASSES shapes at a random place, size, angle and pair of colours, under noise. It
 * follows from its set, its number, its size and the number of classes alone, and has the same bytes on every machine.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_SHAPES_H
#define DSC_ENGINE_DATA_IMAGES_SHAPES_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_SHAPES_CLASSES = 10, DSC_SHAPES_SIDE = 32, DSC_SHAPES_CHANNELS = 3 };
typedef enum dsc_shapes_set { DSC_SHAPES_NONE, DSC_SHAPES_TRAIN, DSC_SHAPES_TEST } dsc_shapes_set;
#define DSC_SHAPES_TRAIN_NAME "shapes:train"
#define DSC_SHAPES_TEST_NAME "shapes:test"

/* The set that a name of the config means; DSC_SHAPES_NONE: it is not a set of drawn pictures. */
dsc_shapes_set dsc_shapes_find(const char *name);
int64_t dsc_shapes_count(dsc_shapes_set set); /* pictures */
/* [DSC_SHAPES_CLASSES] "circle", "square", ...; borrowed forever. */
const char *const *dsc_shapes_names(void);
/* Picture i as pixels[height,width,channels], and its class. With fewer classes the last shapes are missing. */
int32_t dsc_shapes_draw(dsc_shapes_set set, int64_t i, int64_t height, int64_t width, int64_t channels, int64_t classes,
                        uint8_t *pixels);

#ifdef __cplusplus
}
#endif
#endif
