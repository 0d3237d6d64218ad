/* decode_webp.c - WebP by libwebp (libwebp.so.7). The container is that of RFC 9649: the file's chunks are looked at
 * here for animations and the orientation. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/images/decode_internal.h"

enum { FIRST_CHUNK = 12, CHUNK_HEADER = 8, ANIMATED = 2 };

struct dsc_webp {
    void *library;
    int (*size)(const uint8_t *data, size_t bytes, int *width, int *height);
    uint8_t *(*decode)(const uint8_t *data, size_t bytes, uint8_t *out, size_t out_bytes, int stride);
};

/* Sizes of a chunk with a picture, if it is one. */
static void take_chunk(const uint8_t *chunk, int64_t bytes, dsc_image_info *out)
{
    const uint8_t *body = chunk + CHUNK_HEADER;
    if (memcmp(chunk, "EXIF", 4) == 0) {
        const bool marked = bytes >= 6 && memcmp(body, "Exif\0\0", 6) == 0; /* as some programs write it */
        out->orientation = dsc_exif_orientation(body + (marked ? 6 : 0), bytes - (marked ? 6 : 0));
    } else if (out->file_width > 0) {
        return; /* a second picture */
    } else if (memcmp(chunk, "VP8 ", 4) == 0 && bytes >= 10 && memcmp(body + 3, "\x9d\x01\x2a", 3) == 0) {
        out->file_width = (body[6] | body[7] << 8) & 0x3fff;
        out->file_height = (body[8] | body[9] << 8) & 0x3fff;
    } else if (memcmp(chunk, "VP8L", 4) == 0 && bytes >= 5 && body[0] == 0x2f) {
        const uint32_t bits = dsc_le32(body + 1);
        out->file_width = (int32_t)(bits & 0x3fff) + 1;
        out->file_height = (int32_t)(bits >> 14 & 0x3fff) + 1;
    }
}

dsc_status dsc_webp_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err)
{
    const uint8_t *d = from->data;
    for (int64_t at = FIRST_CHUNK; at + CHUNK_HEADER <= from->bytes;) {
        const int64_t bytes = dsc_le32(d + at + 4);
        if (bytes > from->bytes - at - CHUNK_HEADER)
            return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the WebP file is truncated; copy it again");
        if (memcmp(d + at, "VP8X", 4) == 0 && bytes >= 1 && (d[at + CHUNK_HEADER] & ANIMATED) != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the WebP file is an animation; expected one picture");
        take_chunk(d + at, bytes, out);
        at += CHUNK_HEADER + bytes + bytes % 2;
    }
    return out->file_width > 0 ? DSC_OK
                               : DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the WebP file has no picture (truncated?)");
}

dsc_status dsc_webp_open(const char *name, dsc_webp **out, dsc_error *err)
{
    dsc_webp *w = calloc(1, sizeof *w);
    if (w == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory to decode WebP");
    const dsc_symbol symbols[] = { { "WebPGetInfo", (void **)&w->size }, { "WebPDecodeRGBInto", (void **)&w->decode } };
    const dsc_status status = dsc_image_library(name, "WebP", "libwebp.so.7", "libwebp7 (libwebp)", symbols,
                                                (int32_t)DSC_COUNT(symbols), &w->library, err);
    if (status != DSC_OK)
        dsc_webp_close(&w);
    *out = w;
    return status;
}

void dsc_webp_close(dsc_webp **webp)
{
    dsc_webp *w = *webp;
    *webp = NULL;
    if (w == NULL)
        return;
    if (w->library != NULL)
        (void)dlclose(w->library);
    free(w);
}

dsc_status dsc_webp_run(dsc_webp *w, const dsc_encoded *from, dsc_image *out, dsc_error *err)
{
    const int stride = out->width * DSC_IMAGE_CHANNELS;
    int width = 0, height = 0;
    const bool same =
        w->size(from->data, (size_t)from->bytes, &width, &height) != 0 && width == out->width && height == out->height;
    if (!same ||
        w->decode(from->data, (size_t)from->bytes, out->pixels, (size_t)stride * (size_t)out->height, stride) == NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the WebP file is broken or truncated; copy it again");
    return DSC_OK;
}
