/* decode.c - see decode.h: kinds, limits, libraries and the orientation. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/decode.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/data/images/decode_internal.h"

#define SIDE_MAX (1 << 20)

struct dsc_image_decoder {
    int64_t pixels_max;
    dsc_jpeg *jpeg;
    dsc_png *png;
    dsc_webp *webp;
    dsc_image turned; /* before the orientation is applied */
};

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

dsc_status dsc_image_resize(dsc_image *image, const char *name, int32_t width, int32_t height, dsc_error *err)
{
    DSC_ASSERT(width >= 1 && height >= 1 && width <= SIDE_MAX && height <= SIDE_MAX);
    const int64_t bytes = (int64_t)width * height * DSC_IMAGE_CHANNELS;
    if (bytes > image->capacity) {
        free(image->pixels);
        image->capacity = 0;
        image->pixels = malloc((size_t)bytes + DSC_IMAGE_SPARE_BYTES);
        if (image->pixels == NULL)
            return DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory for a picture of %d by %d pixels", (int)width,
                            (int)height);
        image->capacity = bytes;
    }
    image->width = width, image->height = height;
    return DSC_OK;
}

void dsc_image_free(dsc_image *image)
{
    free(image->pixels);
    *image = (dsc_image)DSC_IMAGE_INIT;
}

dsc_image_kind dsc_image_kind_of(const uint8_t *data, int64_t bytes)
{
    if (bytes >= 3 && memcmp(data, "\xff\xd8\xff", 3) == 0)
        return DSC_IMAGE_JPEG;
    if (bytes >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0)
        return DSC_IMAGE_PNG;
    if (bytes >= 12 && memcmp(data, "RIFF", 4) == 0 && memcmp(data + 8, "WEBP", 4) == 0)
        return DSC_IMAGE_WEBP;
    return DSC_IMAGE_UNKNOWN;
}

bool dsc_image_name_is_picture(const char *name)
{
    static const char *const endings[] = { ".jpg", ".jpeg", ".png", ".webp" };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < DSC_COUNT(endings) && dot != NULL; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

/* ---- EXIF -------------------------------------------------------------------------------------------------------- */

static uint32_t tiff_number(const uint8_t *at, int bytes, bool big)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * (big ? bytes - 1 - i : i);
    return value;
}

/* TIFF 6.0, section 2: entries of 12 bytes in the first directory. */
int32_t dsc_exif_orientation(const uint8_t *tiff, int64_t bytes)
{
    enum { ORIENTATION = 0x0112, TYPE_SHORT = 3 };
    if (bytes < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 1;
    const bool big = tiff[0] == 'M';
    const int64_t at = tiff_number(tiff + 4, 4, big);
    if (at > bytes - 2)
        return 1;
    const int64_t count = tiff_number(tiff + at, 2, big);
    for (int64_t i = 0; i < count && at + 2 + 12 * (i + 1) <= bytes; i++) {
        const uint8_t *entry = tiff + at + 2 + 12 * i;
        if (tiff_number(entry, 2, big) != ORIENTATION || tiff_number(entry + 2, 2, big) != TYPE_SHORT)
            continue;
        const uint32_t value = tiff_number(entry + 8, 2, big);
        return value >= 1 && value <= 8 ? (int32_t)value : 1;
    }
    return 1;
}

/* Where pixel (x, y) of the upright picture lies in the stored one of width w and height h. */
static int64_t stored_at(int32_t orientation, int64_t x, int64_t y, int64_t w, int64_t h)
{
    switch (orientation) {
    case 2:
        return y * w + (w - 1 - x);
    case 3:
        return (h - 1 - y) * w + (w - 1 - x);
    case 4:
        return (h - 1 - y) * w + x;
    case 5:
        return x * w + y;
    case 6:
        return (h - 1 - x) * w + y;
    case 7:
        return (h - 1 - x) * w + (w - 1 - y);
    case 8:
        return x * w + (w - 1 - y);
    default:
        return y * w + x;
    }
}

static dsc_status turn(const dsc_image *from, const char *name, int32_t orientation, dsc_image *out, dsc_error *err)
{
    const bool swaps = orientation >= 5;
    DSC_TRY(dsc_image_resize(out, name, swaps ? from->height : from->width, swaps ? from->width : from->height, err));
    for (int32_t y = 0; y < out->height; y++)
        for (int32_t x = 0; x < out->width; x++)
            memcpy(out->pixels + ((int64_t)y * out->width + x) * DSC_IMAGE_CHANNELS,
                   from->pixels + stored_at(orientation, x, y, from->width, from->height) * DSC_IMAGE_CHANNELS,
                   DSC_IMAGE_CHANNELS);
    return DSC_OK;
}

/* ---- decoders ---------------------------------------------------------------------------------------------------- */

dsc_status dsc_image_library(const char *name, const char *format, const char *library, const char *package,
                             const dsc_symbol *symbols, int32_t count, void **out, dsc_error *err)
{
    void *found = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    bool whole = found != NULL;
    for (int32_t i = 0; i < count && whole; i++) {
        *symbols[i].address = dlsym(found, symbols[i].name);
        whole = *symbols[i].address != NULL;
    }
    *out = whole ? found : NULL;
    if (whole)
        return DSC_OK;
    if (found != NULL)
        (void)dlclose(found);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, name,
                    "the picture is %s, and %s is not installed; install the package %s", format, library, package);
}

dsc_status dsc_image_decoder_open(int64_t pixels_max, dsc_image_decoder **out, dsc_error *err)
{
    DSC_ASSERT(pixels_max >= 1);
    dsc_image_decoder *d = calloc(1, sizeof *d);
    *out = d;
    if (d == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "data", "no memory for a decoder of pictures");
    d->pixels_max = pixels_max;
    return DSC_OK;
}

void dsc_image_decoder_close(dsc_image_decoder **decoder)
{
    dsc_image_decoder *d = *decoder;
    *decoder = NULL;
    if (d == NULL)
        return;
    dsc_jpeg_close(&d->jpeg);
    dsc_png_close(&d->png);
    dsc_webp_close(&d->webp);
    dsc_image_free(&d->turned);
    free(d);
}

static dsc_status refuse_kind(const dsc_encoded *from, dsc_error *err)
{
    const uint8_t *d = from->data;
    const int64_t n = from->bytes;
    const char *what = n == 0                                    ? "the file is empty"
                       : n >= 4 && memcmp(d, "GIF8", 4) == 0     ? "the picture is GIF"
                       : n >= 2 && memcmp(d, "BM", 2) == 0       ? "the picture is BMP"
                       : n >= 4 && memcmp(d, "II*\0", 4) == 0    ? "the picture is TIFF"
                       : n >= 4 && memcmp(d, "MM\0*", 4) == 0    ? "the picture is TIFF"
                       : n >= 8 && memcmp(d + 4, "ftyp", 4) == 0 ? "the picture is HEIC or AVIF"
                                                                 : "the file is not a picture";
    return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "%s; expected JPEG, PNG or WebP", what);
}

dsc_status dsc_image_decoder_read_info(dsc_image_decoder *d, const char *name, const uint8_t *data, int64_t bytes,
                                       dsc_image_info *out, dsc_error *err)
{
    const dsc_encoded from = { name, data, bytes };
    *out = (dsc_image_info) { .kind = dsc_image_kind_of(data, bytes), .orientation = 1 };
    switch (out->kind) {
    case DSC_IMAGE_JPEG:
        DSC_TRY(dsc_jpeg_read(&from, out, err));
        break;
    case DSC_IMAGE_PNG:
        DSC_TRY(dsc_png_read(&from, out, err));
        break;
    case DSC_IMAGE_WEBP:
        DSC_TRY(dsc_webp_read(&from, out, err));
        break;
    default:
        return refuse_kind(&from, err);
    }
    const int64_t pixels = (int64_t)out->file_width * out->file_height;
    if (out->file_width < 1 || out->file_height < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "the header says %d by %d pixels; expected 1 or more",
                        (int)out->file_width, (int)out->file_height);
    if (pixels > d->pixels_max / (out->four ? 2 : 1) || out->file_width > SIDE_MAX || out->file_height > SIDE_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "the header says %d by %d pixels%s, and dsc.images.pixels_max allows %lld; make the picture "
                        "smaller, or raise this key",
                        (int)out->file_width, (int)out->file_height, out->four ? " of four channels" : "",
                        (long long)(d->pixels_max / (out->four ? 2 : 1)));
    const bool swaps = out->orientation >= 5;
    out->width = swaps ? out->file_height : out->file_width;
    out->height = swaps ? out->file_width : out->file_height;
    return DSC_OK;
}

static dsc_status run_stored(dsc_image_decoder *d, const dsc_encoded *from, const dsc_image_info *info, dsc_image *out,
                             dsc_error *err)
{
    if (info->kind == DSC_IMAGE_JPEG) {
        if (d->jpeg == NULL)
            DSC_TRY(dsc_jpeg_open(from->name, &d->jpeg, err));
        return dsc_jpeg_run(d->jpeg, from, info, out, err);
    }
    if (info->kind == DSC_IMAGE_PNG) {
        if (d->png == NULL)
            DSC_TRY(dsc_png_open(from->name, &d->png, err));
        return dsc_png_run(d->png, from, out, err);
    }
    if (d->webp == NULL)
        DSC_TRY(dsc_webp_open(from->name, &d->webp, err));
    return dsc_webp_run(d->webp, from, out, err);
}

dsc_status dsc_image_decoder_run(dsc_image_decoder *d, const char *name, const uint8_t *data, int64_t bytes,
                                 const dsc_image_info *info, int32_t eighths, dsc_image *out, dsc_error *err)
{
    const dsc_encoded from = { name, data, bytes };
    DSC_ASSERT(eighths == 8 || (info->kind == DSC_IMAGE_JPEG && (eighths == 1 || eighths == 2 || eighths == 4)));
    dsc_image *stored = info->orientation == 1 ? out : &d->turned;
    DSC_TRY(dsc_image_resize(stored, name, (info->file_width * eighths + 7) / 8, (info->file_height * eighths + 7) / 8,
                             err));
    DSC_TRY(run_stored(d, &from, info, stored, err));
    return info->orientation == 1 ? DSC_OK : turn(stored, name, info->orientation, out, err);
}
