/* picture_file.h - files of pictures with a class each: packed ones, IDX (MNIST) and CIFAR's binary files.
 *
 * Packed, little-endian (docs/data.md writes one from numpy):
 *
 *     bytes 0..7     "DSCPIX01"
 *     8..15          int64  number of pictures, 1 or more
 *     16..31         int32  height, width, channels, classes
 *     32..63         zeros
 *     from 64 on     int32  class of each picture, from 0 to classes - 1
 *     then           uint8  pixels [pictures,height,width,channels]
 *
 * IDX: big-endian bytes [pictures,height,width] in a file whose name has "images" and "idx3"; the file with "labels"
 * and "idx1" beside it has a byte for each. CIFAR: records of one label byte (CIFAR-100: a coarse one before it) and
 * three planes of 32 by 32. A file is known by its content, CIFAR's by its size and the ending ".bin".
 * Every field is checked: a size that does not fit the file is DSC_ERR_INPUT. Drawn pictures (images/shapes.h) are read
 * as those of a file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_PICTURE_FILE_H
#define DSC_ENGINE_DATA_PICTURE_FILE_H

#include "base/io.h"
#include "engine/data/images/shapes.h"

#define DSC_PICTURE_MAGIC "DSCPIX01"
enum { DSC_PICTURE_MAGIC_BYTES = 8, DSC_PICTURE_HEADER_BYTES = 64 };
#define DSC_PICTURE_SIDE_MAX (1 << 14)
#define DSC_PICTURE_CHANNELS_MAX 64

typedef struct dsc_picture_file {
    dsc_file pixels, labels; /* labels: of IDX, else not open */
    int64_t count, height, width, channels;
    int64_t classes;                   /* 0: the file does not say */
    int64_t pixel_start, pixel_stride; /* bytes: of the first picture, and between pictures */
    int64_t label_start, label_stride;
    int32_t label_bytes; /* 1 or 4 */
    bool planes;         /* a picture is [channels,height,width], else [height,width,channels] */
    dsc_shapes_set drawn; /* there is no file */
} dsc_picture_file;
#define DSC_PICTURE_FILE_INIT                                                                                          \
    {                                                                                                                  \
        DSC_FILE_INIT, DSC_FILE_INIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, DSC_SHAPES_NONE                             \
    }

DSC_MUST_USE dsc_status dsc_picture_file_open(const dsc_io *io, const char *path, dsc_picture_file *out,
                                              dsc_error *err);
void dsc_picture_file_close(const dsc_io *io, dsc_picture_file *file);
/* A set of drawn pictures of a size, of as many classes as there are and at most `classes`. */
void dsc_picture_file_draw(dsc_shapes_set set, int64_t height, int64_t width, int64_t channels, int64_t classes,
                           dsc_picture_file *out);
/* *classes <- the file's number of classes: that of its header, else one more than its highest label. */
DSC_MUST_USE dsc_status dsc_picture_file_classes(const dsc_io *io, dsc_picture_file *file, int64_t *classes,
                                                 dsc_error *err);
/* The class of every picture, which must be below `classes`: DSC_ERR_INPUT names the first other one. */
DSC_MUST_USE dsc_status dsc_picture_file_check(const dsc_io *io, dsc_picture_file *file, int64_t classes,
                                               dsc_error *err);
/* Picture i: pixels[height * width * channels] as they lie in the file, and its class, which is below `classes`. */
DSC_MUST_USE dsc_status dsc_picture_file_read(const dsc_io *io, dsc_picture_file *file, int64_t i, int64_t classes,
                                              uint8_t *pixels, int32_t *label, dsc_error *err);

#endif
