/* decode_png.c - PNG by libpng (libpng16.so.16), through functions whose arguments are numbers and opaque pointers.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/images/decode_internal.h"

enum { HEADER_BYTES = 33, CHUNK_BYTES = 12, ANCILLARY_BYTES_MAX = 1 << 20 };

struct dsc_png {
    void *library;
    void *(*create)(const char *version, void *user, void (*error)(void *, const char *),
                    void (*warning)(void *, const char *));
    void *(*create_info)(void *png);
    void (*destroy)(void **png, void **info, void **end);
    void (*set_read)(void *png, void *user, void (*read)(void *, unsigned char *, size_t));
    void (*chunk_bytes)(void *png, size_t most);
    void (*limits)(void *png, uint32_t width, uint32_t height);
    void (*read_info)(void *png, void *info);
    void (*expand)(void *png);
    void (*strip_16)(void *png);
    void (*strip_alpha)(void *png);
    void (*gray_to_rgb)(void *png);
    int (*interlace)(void *png);
    void (*update)(void *png, void *info);
    size_t (*row_bytes)(const void *png, const void *info);
    void (*read_row)(void *png, unsigned char *row, unsigned char *display);
    void (*read_end)(void *png, void *info);
    /* of the picture that is decoded */
    void *png, *info;
    const dsc_encoded *from;
    int64_t at;
    jmp_buf back;
    char text[200];
};

/* ---- header ------------------------------------------------------------------------------------------------------ */

dsc_status dsc_png_read(const dsc_encoded *from, dsc_image_info *out, dsc_error *err)
{
    const uint8_t *d = from->data;
    if (from->bytes < HEADER_BYTES || memcmp(d + 12, "IHDR", 4) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the PNG file is truncated: it has no header; copy it again");
    const uint32_t width = dsc_be32(d + 16), height = dsc_be32(d + 20);
    out->file_width = width > INT32_MAX ? INT32_MAX : (int32_t)width;
    out->file_height = height > INT32_MAX ? INT32_MAX : (int32_t)height;
    for (int64_t at = 8; at + CHUNK_BYTES <= from->bytes;) {
        const int64_t bytes = dsc_be32(d + at);
        if (bytes > from->bytes - at - CHUNK_BYTES)
            break;
        if (memcmp(d + at + 4, "eXIf", 4) == 0)
            out->orientation = dsc_exif_orientation(d + at + 8, bytes);
        at += CHUNK_BYTES + bytes;
    }
    return DSC_OK;
}

/* ---- libpng ------------------------------------------------------------------------------------------------------ */

dsc_status dsc_png_open(const char *name, dsc_png **out, dsc_error *err)
{
    dsc_png *p = calloc(1, sizeof *p);
    if (p == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, name, "no memory to decode PNG");
    const dsc_symbol symbols[] = { { "png_create_read_struct", (void **)&p->create },
                                   { "png_create_info_struct", (void **)&p->create_info },
                                   { "png_destroy_read_struct", (void **)&p->destroy },
                                   { "png_set_read_fn", (void **)&p->set_read },
                                   { "png_set_chunk_malloc_max", (void **)&p->chunk_bytes },
                                   { "png_set_user_limits", (void **)&p->limits },
                                   { "png_read_info", (void **)&p->read_info },
                                   { "png_set_expand", (void **)&p->expand },
                                   { "png_set_strip_16", (void **)&p->strip_16 },
                                   { "png_set_strip_alpha", (void **)&p->strip_alpha },
                                   { "png_set_gray_to_rgb", (void **)&p->gray_to_rgb },
                                   { "png_set_interlace_handling", (void **)&p->interlace },
                                   { "png_read_update_info", (void **)&p->update },
                                   { "png_get_rowbytes", (void **)&p->row_bytes },
                                   { "png_read_row", (void **)&p->read_row },
                                   { "png_read_end", (void **)&p->read_end } };
    const dsc_status status = dsc_image_library(name, "PNG", "libpng16.so.16", "libpng16-16 (libpng)", symbols,
                                                (int32_t)DSC_COUNT(symbols), &p->library, err);
    if (status != DSC_OK)
        dsc_png_close(&p);
    *out = p;
    return status;
}

void dsc_png_close(dsc_png **png)
{
    dsc_png *p = *png;
    *png = NULL;
    if (p == NULL)
        return;
    if (p->library != NULL)
        (void)dlclose(p->library);
    free(p);
}

/* libpng's functions come back here when a file is broken. */
static void on_error(dsc_png *p, const char *text)
{
    strncpy(p->text, text, sizeof p->text - 1);
    longjmp(p->back, 1);
}

/* Callbacks have only libpng's own struct, and the function that gives its user is known to dsc_png alone. */
static _Thread_local dsc_png *current;

static void take_warning(void *png, const char *text) { (void)png, (void)text; }

static void take_error(void *png, const char *text)
{
    (void)png;
    on_error(current, text);
}

static void take_bytes(void *png, unsigned char *to, size_t bytes)
{
    dsc_png *p = current;
    (void)png;
    if (bytes > (size_t)(p->from->bytes - p->at))
        on_error(p, "the file is truncated");
    memcpy(to, p->from->data + p->at, bytes);
    p->at += (int64_t)bytes;
}

/* Rows of an interlaced picture come in up to 7 passes over all of it. False: broken, with its text. */
static bool run_rows(dsc_png *p, dsc_image *out)
{
    if (setjmp(p->back) != 0)
        return false;
    p->set_read(p->png, p, take_bytes);
    p->limits(p->png, (uint32_t)out->width, (uint32_t)out->height);
    p->chunk_bytes(p->png, ANCILLARY_BYTES_MAX);
    p->read_info(p->png, p->info);
    p->expand(p->png);
    p->strip_16(p->png);
    p->strip_alpha(p->png);
    p->gray_to_rgb(p->png);
    const int passes = p->interlace(p->png);
    p->update(p->png, p->info);
    const size_t row = (size_t)out->width * DSC_IMAGE_CHANNELS;
    if (p->row_bytes(p->png, p->info) != row)
        on_error(p, "the header and the rows have other sizes");
    for (int pass = 0; pass < passes; pass++)
        for (int32_t y = 0; y < out->height; y++)
            p->read_row(p->png, out->pixels + (size_t)y * row, NULL);
    p->read_end(p->png, NULL);
    return true;
}

/* The library compares the first two numbers of the version alone. */
static bool open_structs(dsc_png *p)
{
    p->png = p->info = NULL;
    if (setjmp(p->back) != 0)
        return false;
    p->png = p->create("1.6.0", p, take_error, take_warning);
    if (p->png != NULL)
        p->info = p->create_info(p->png);
    return p->info != NULL;
}

dsc_status dsc_png_run(dsc_png *p, const dsc_encoded *from, dsc_image *out, dsc_error *err)
{
    p->from = from;
    p->at = 0;
    p->text[0] = 0;
    current = p;
    const bool ready = open_structs(p), good = ready && run_rows(p, out);
    if (p->png != NULL)
        p->destroy(&p->png, &p->info, NULL);
    current = NULL;
    if (!ready)
        return DSC_FAIL(err, DSC_ERR_NOMEM, from->name, "no memory to decode PNG");
    return good ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, from->name, "the PNG file is broken: %.150s", p->text);
}
