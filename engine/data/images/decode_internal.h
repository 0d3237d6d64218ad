/* decode_internal.h - the decoders of each format; only for decode*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_DECODE_INTERNAL_H
#define DSC_ENGINE_DATA_IMAGES_DECODE_INTERNAL_H

#include "engine/data/images/decode.h"

/* An encoded picture. */
typedef struct dsc_encoded {
    const char *name;
    const uint8_t *data;
    int64_t bytes;
} dsc_encoded;

typedef struct dsc_jpeg dsc_jpeg;
typedef struct dsc_png dsc_png;
typedef struct dsc_webp dsc_webp;

/* The library at its first use. `read`: sizes as the file stores them, and the orientation. `run`: the picture as the
 * file stores it into out->pixels, which has room. */
DSC_MUST_USE dsc_status dsc_jpeg_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_jpeg_open(const char *name, dsc_jpeg **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_jpeg_run(dsc_jpeg *jpeg, const dsc_encoded *from, const dsc_image_info *info,
                                     dsc_image *out, dsc_error *err);
void dsc_jpeg_close(dsc_jpeg **jpeg);

DSC_MUST_USE dsc_status dsc_png_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_png_open(const char *name, dsc_png **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_png_run(dsc_png *png, const dsc_encoded *from, dsc_image *out, dsc_error *err);
void dsc_png_close(dsc_png **png);

DSC_MUST_USE dsc_status dsc_webp_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_webp_open(const char *name, dsc_webp **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_webp_run(dsc_webp *webp, const dsc_encoded *from, dsc_image *out, dsc_error *err);
void dsc_webp_close(dsc_webp **webp);

/* decode.c: the orientation in a block of EXIF, 1 where there is none or a wrong one. */
int32_t dsc_exif_orientation(const uint8_t *tiff, int64_t bytes);
/* Opens a library and finds its functions. DSC_ERR_UNSUPPORTED names the package. */
typedef struct dsc_symbol {
    const char *name;
    void **address;
} dsc_symbol;
DSC_MUST_USE dsc_status dsc_image_library(const char *name, const char *format, const char *library,
                                          const char *package, const dsc_symbol *symbols, int32_t count, void **out,
                                          dsc_error *err);

static inline uint32_t dsc_be16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static inline uint32_t dsc_be32(const uint8_t *p) { return dsc_be16(p) << 16 | dsc_be16(p + 2); }
static inline uint32_t dsc_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

#endif
