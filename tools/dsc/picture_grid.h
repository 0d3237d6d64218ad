/* picture_grid.h - small pictures with two words each, as one PNG file and as text for a terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_PICTURE_GRID_H
#define DSC_TOOLS_PICTURE_GRID_H

#include <dsc/error.h>

#include "base/base.h"

enum { PICTURE_GRID_SIDE = 64, PICTURE_GRID_COLUMNS = 10, PICTURE_GRID_MAX = 100, PICTURE_GRID_WORD = 24 };

/* A picture, brought to a square by taking the nearest pixels. */
typedef struct picture_cell {
    uint8_t rgb[PICTURE_GRID_SIDE * PICTURE_GRID_SIDE * 3];
    char said[PICTURE_GRID_WORD], truth[PICTURE_GRID_WORD]; /* truth "": it is not known */
} picture_cell;

/* Values are pixel levels from 0 to 255 in planes[planes,height,width] of 1, 3 or more planes. */
void picture_cell_fill(picture_cell *cell, const float *levels, int64_t planes, int64_t height, int64_t width);
/* A PNG file: said is green or red, as it is the truth or not. */
DSC_MUST_USE dsc_status picture_grid_save(const char *path, const picture_cell *cell, int64_t count, dsc_error *err);
/* To stdout, four beside each other; a truth that was not said is in brackets. */
void picture_grid_print(const picture_cell *cell, int64_t count);

#endif
