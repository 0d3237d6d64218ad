/* decode_jpeg.c - JPEG by TurboJPEG (libturbojpeg.so.0), whose functions take plain numbers and keep their form from
 * version 1.4 on. Markers are read here first (ITU-T T.81, annex B): sizes, scans, the orientation and the end.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/images/decode_internal.h"

/* turbojpeg.h */
enum { FORMAT_RGB = 0, FORMAT_CMYK = 11, ERROR_WARNING = 0, FLAG_LIMIT_SCANS = 32768 };
/* Each scan of a progressive file is a pass over all coefficients. Encoders write about 10. */
enum { SCANS_MAX = 64 };
#define SCANNED_PIXELS_MAX (INT64_C(320) << 20)

struct dsc_jpeg {
    void *library, *handle;
    void *(*init)(void);
    int (*destroy)(void *handle);
    int (*decompress)(void *handle, const unsigned char *data, unsigned long bytes, unsigned char *out, int width,
                      int pitch, int height, int format, int flags);
    char *(*error_text)(void *handle);
    int (*error_code)(void *handle);
    uint8_t *four; /* CMYK pixels */
    int64_t four_bytes;
};

/* ---- markers ----------------------------------------------------------------------------------------------------- */

typedef struct marker_state {
    const dsc_encoded *from;
    int64_t at;
    int32_t scans, components;
    bool ended;
} marker_state;

static dsc_status truncated(const dsc_encoded *from, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the JPEG file is truncated: it has no end marker; copy it again");
}

/* Frames: all SOF markers but DHT, JPG and DAC. */
static bool is_frame(int code) { return code >= 0xc0 && code <= 0xcf && code != 0xc4 && code != 0xc8 && code != 0xcc; }

static dsc_status take_frame(marker_state *s, int code, const uint8_t *body, int64_t bytes, dsc_image_info *out,
                             dsc_error *err)
{
    if (bytes < 6 || (code != 0xc0 && code != 0xc1 && code != 0xc2 && code != 0xc9 && code != 0xca) || body[0] != 8)
        return DSC_FAIL(err, DSC_ERR_INPUT, s->from->name,
                        "a JPEG file of another process or of %d bits; expected baseline or progressive, of 8 bits",
                        bytes < 6 ? 0 : (int)body[0]);
    if (s->components > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, s->from->name, "the JPEG file has two frames; expected one");
    out->file_height = (int32_t)dsc_be16(body + 1);
    out->file_width = (int32_t)dsc_be16(body + 3);
    s->components = body[5];
    out->four = s->components == 4;
    return DSC_OK;
}

static dsc_status take_segment(marker_state *s, int code, dsc_image_info *out, dsc_error *err)
{
    const uint8_t *d = s->from->data;
    if (s->at + 2 > s->from->bytes)
        return truncated(s->from, err);
    const int64_t bytes = dsc_be16(d + s->at);
    if (bytes < 2 || s->at + bytes > s->from->bytes)
        return truncated(s->from, err);
    const uint8_t *body = d + s->at + 2;
    s->at += bytes;
    if (code == 0xe1 && bytes >= 8 && memcmp(body, "Exif\0\0", 6) == 0)
        out->orientation = dsc_exif_orientation(body + 6, bytes - 8);
    if (code == 0xda && ++s->scans > SCANS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, s->from->name, "the JPEG file has more than %d scans", SCANS_MAX);
    return is_frame(code) ? take_frame(s, code, body, bytes - 2, out, err) : DSC_OK;
}

dsc_status dsc_jpeg_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err)
{
    marker_state s = { .from = from, .at = 2 };
    while (!s.ended) {
        const uint8_t *next = s.at < from->bytes ? memchr(from->data + s.at, 0xff, (size_t)(from->bytes - s.at)) : NULL;
        if (next == NULL || next + 1 >= from->data + from->bytes)
            return truncated(from, err);
        const int code = next[1];
        s.at = next - from->data + 2;
        if (code == 0xff)
            s.at--; /* a fill byte */
        else if (code == 0xd9)
            s.ended = true;
        else if (code != 0 && code != 1 && (code < 0xd0 || code > 0xd8)) /* not stuffed, no marker without a length */
            DSC_TRY(take_segment(&s, code, out, err));
    }
    if (s.components == 0 || s.scans == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the JPEG file has no picture before its end marker");
    const int64_t pixels = (int64_t)out->file_width * out->file_height;
    if (s.scans > 1 && s.scans * pixels > SCANNED_PIXELS_MAX && pixels <= SCANNED_PIXELS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, from->name,
                        "the JPEG file has %d scans of %lld pixels; at most %lld pixels in all scans are possible",
                        (int)s.scans, (long long)pixels, (long long)SCANNED_PIXELS_MAX);
    return DSC_OK;
}

/* ---- TurboJPEG --------------------------------------------------------------------------------------------------- */

dsc_status dsc_jpeg_open(const char *name, dsc_jpeg **out, dsc_error *err)
{
    dsc_jpeg *j = calloc(1, sizeof *j);
    if (j == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory to decode JPEG");
    const dsc_symbol symbols[] = { { "tjInitDecompress", (void **)&j->init },
                                   { "tjDestroy", (void **)&j->destroy },
                                   { "tjDecompress2", (void **)&j->decompress },
                                   { "tjGetErrorStr2", (void **)&j->error_text },
                                   { "tjGetErrorCode", (void **)&j->error_code } };
    dsc_status status = dsc_image_library(name, "JPEG", "libturbojpeg.so.0", "libturbojpeg0 (libjpeg-turbo)", symbols,
                                          (int32_t)DSC_COUNT(symbols), &j->library, err);
    if (status == DSC_OK && (j->handle = j->init()) == NULL)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory to decode JPEG");
    if (status != DSC_OK)
        dsc_jpeg_close(&j);
    *out = j;
    return status;
}

void dsc_jpeg_close(dsc_jpeg **jpeg)
{
    dsc_jpeg *j = *jpeg;
    *jpeg = NULL;
    if (j == NULL)
        return;
    if (j->handle != NULL)
        (void)j->destroy(j->handle);
    if (j->library != NULL)
        (void)dlclose(j->library);
    free(j->four);
    free(j);
}

/* a * b / 255, rounded, as Pillow computes it. */
static int product_of(int a, int b)
{
    const int t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}

/* Adobe's programs store inverted values, and Pillow takes every file so. Black and the inverted ink give a channel. */
static void to_rgb(const uint8_t *four, int64_t pixels, uint8_t *out)
{
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < DSC_IMAGE_CHANNELS; c++) {
            const int light = four[4 * i + 3], value = light - product_of(255 - four[4 * i + c], light);
            out[DSC_IMAGE_CHANNELS * i + c] = (uint8_t)(value < 0 ? 0 : value);
        }
}

static dsc_status find_room(dsc_jpeg *j, const dsc_encoded *from, int64_t bytes, dsc_error *err)
{
    if (bytes <= j->four_bytes)
        return DSC_OK;
    free(j->four);
    j->four_bytes = 0;
    j->four = malloc((size_t)bytes);
    if (j->four == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, from->name, "no memory for a picture of four channels");
    j->four_bytes = bytes;
    return DSC_OK;
}

/* A warning leaves a whole picture, such as bytes between segments, which Pillow accepts too. */
dsc_status dsc_jpeg_run(dsc_jpeg *j, const dsc_encoded *from, const dsc_image_info *info, dsc_image *out,
                        dsc_error *err)
{
    const int64_t pixels = (int64_t)out->width * out->height;
    if (info->four)
        DSC_TRY(find_room(j, from, 4 * pixels, err));
    const int failed =
        j->decompress(j->handle, from->data, (unsigned long)from->bytes, info->four ? j->four : out->pixels, out->width,
                      0, out->height, info->four ? FORMAT_CMYK : FORMAT_RGB, FLAG_LIMIT_SCANS);
    const char *text = failed != 0 ? j->error_text(j->handle) : "";
    if (failed != 0 && (j->error_code(j->handle) != ERROR_WARNING || strstr(text, "Premature end of JPEG") != NULL))
        return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the JPEG file is broken: %.200s", text);
    if (info->four)
        to_rgb(j->four, pixels, out->pixels);
    return DSC_OK;
}
