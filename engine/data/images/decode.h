/* decode.h - JPEG, PNG and WebP pictures as RGB bytes. The libraries are opened when the first picture needs one:
 * libturbojpeg.so.0, libpng16.so.16, libwebp.so.7.
 *
 * A picture is 8 bits of red, green and blue. Gray is given as three equal channels, palettes as their colours, 16 bits
 * as their upper 8. Alpha is dropped, CMYK becomes RGB as in Pillow, EXIF's orientation is applied, and colour
 * profiles and gammas have no effect. An animation is refused.
 *
 * Everything in a file is hostile. The sizes of the header are compared with the limits before any memory is taken.
 * DSC_ERR_INPUT: a picture that is broken or beyond a limit. DSC_ERR_UNSUPPORTED: the library is not installed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_DECODE_H
#define DSC_ENGINE_DATA_IMAGES_DECODE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pixels of a picture by default; bytes that a decoder takes for each at most: those of a progressive JPEG file. */
#define DSC_IMAGE_PIXELS_MAX (INT64_C(24) << 20)
enum { DSC_IMAGE_DECODER_BYTES = 9 };
#define DSC_IMAGE_FILE_BYTES_MAX (INT64_C(32) << 20) /* of an encoded picture */
enum { DSC_IMAGE_CHANNELS = 3 };

/* Bytes behind the pixels that may be read and written. */
enum { DSC_IMAGE_SPARE_BYTES = 32 };
typedef struct dsc_image {
    uint8_t *pixels;  /* [height,width,3], owned: dsc_image_free */
    int64_t capacity; /* bytes */
    int32_t width, height;
} dsc_image;
#define DSC_IMAGE_INIT                                                                                                 \
    {                                                                                                                  \
        NULL, 0, 0, 0                                                                                                  \
    }
/* Room for width x height pixels, whose values are undefined; the memory of earlier pictures is used again. */
DSC_MUST_USE dsc_status dsc_image_resize(dsc_image *image, const char *name, int32_t width, int32_t height,
                                         dsc_error *err);
void dsc_image_free(dsc_image *image);

typedef enum dsc_image_kind { DSC_IMAGE_UNKNOWN, DSC_IMAGE_JPEG, DSC_IMAGE_PNG, DSC_IMAGE_WEBP } dsc_image_kind;
dsc_image_kind dsc_image_kind_of(const uint8_t *data, int64_t bytes);
/* The ending of a name says that it is a picture: .jpg, .jpeg, .png or .webp in any case. */
bool dsc_image_name_is_picture(const char *name);

/* The facts of a header. */
typedef struct dsc_image_info {
    dsc_image_kind kind;
    int32_t width, height;           /* upright */
    int32_t file_width, file_height; /* as the file stores them */
    int32_t orientation;             /* EXIF's, 1..8 */
    bool four;                       /* JPEG: CMYK or YCCK */
} dsc_image_info;

/* One thread's decoders. */
typedef struct dsc_image_decoder dsc_image_decoder;
DSC_MUST_USE dsc_status dsc_image_decoder_open(int64_t pixels_max, dsc_image_decoder **out, dsc_error *err);
void dsc_image_decoder_close(dsc_image_decoder **decoder); /* safe on NULL */
/* `name`: for messages. */
DSC_MUST_USE dsc_status dsc_image_decoder_read_info(dsc_image_decoder *decoder, const char *name, const uint8_t *data,
                                                    int64_t bytes, dsc_image_info *out, dsc_error *err);
/* The picture of this info, upright. `eighths`: 8, or of JPEG alone 1, 2 or 4: the size is ceil(side * eighths / 8), by
 * the inverse DCT of fewer coefficients. */
DSC_MUST_USE dsc_status dsc_image_decoder_run(dsc_image_decoder *decoder, const char *name, const uint8_t *data,
                                              int64_t bytes, const dsc_image_info *info, int32_t eighths,
                                              dsc_image *out, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
