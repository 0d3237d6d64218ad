/* image_reader.c - see image_reader.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/image_reader.h"

#include <stdlib.h>

dsc_status dsc_image_reader_open(int64_t pixels_max, dsc_image_reader *out, dsc_error *err)
{
    *out = (dsc_image_reader) { .decoder = NULL };
    return dsc_image_decoder_open(pixels_max, &out->decoder, err);
}

void dsc_image_reader_close(dsc_image_reader *r)
{
    dsc_image_decoder_close(&r->decoder);
    dsc_augmenter_free(&r->augmenter);
    dsc_image_free(&r->from);
    dsc_image_free(&r->out);
    free(r->data);
    *r = (dsc_image_reader) { .decoder = NULL };
}

static int32_t scaled(int32_t side, int32_t eighths) { return (int32_t)(((int64_t)side * eighths + 7) / 8); }

/* The smallest size to which the part still has as many pixels as its result. */
static int32_t choose_eighths(const dsc_image_cut *cut)
{
    int32_t eighths = 8;
    while (eighths > 1 && (int64_t)cut->box.width * eighths / 16 >= cut->width &&
           (int64_t)cut->box.height * eighths / 16 >= cut->height)
        eighths /= 2;
    return eighths;
}

/* The part in a picture that was decoded to fewer pixels. */
static void scale_box(dsc_box *box, int32_t eighths, const dsc_image *image)
{
    box->x = box->x * eighths / 8;
    box->y = box->y * eighths / 8;
    box->width = (int32_t)dsc_min_i64(scaled(box->width, eighths), image->width - box->x);
    box->height = (int32_t)dsc_min_i64(scaled(box->height, eighths), image->height - box->y);
}

dsc_status dsc_image_reader_encoded(dsc_image_reader *r, const dsc_image_list *list, int64_t i,
                                    const dsc_image_transform *t, bool dct_scaling, const dsc_image_key *key,
                                    dsc_error *err)
{
    char name[1200];
    int64_t bytes = 0;
    dsc_image_info info;
    dsc_image_cut cut;
    dsc_image_list_path(list, i, name, sizeof name);
    DSC_TRY(dsc_image_list_read(list, i, &r->data, &r->room, &bytes, err));
    DSC_TRY(dsc_image_decoder_read_info(r->decoder, name, r->data, bytes, &info, err));
    dsc_image_plan_cut(t, key, info.width, info.height, &cut);
    const int32_t eighths = dct_scaling && info.kind == DSC_IMAGE_JPEG ? choose_eighths(&cut) : 8;
    DSC_TRY(dsc_image_decoder_run(r->decoder, name, r->data, bytes, &info, eighths, &r->from, err));
    if (eighths < 8)
        scale_box(&cut.box, eighths, &r->from);
    return dsc_image_augment(&r->augmenter, t, key, &cut, name, &r->from, &r->out, err);
}

dsc_status dsc_image_reader_room(dsc_image_reader *r, int64_t bytes, dsc_error *err)
{
    if (bytes <= r->room)
        return DSC_OK;
    free(r->data);
    r->room = 0;
    r->data = malloc((size_t)bytes);
    if (r->data == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "data", "no memory for a picture of %lld bytes", (long long)bytes);
    r->room = bytes;
    return DSC_OK;
}

dsc_status dsc_image_reader_pixels(dsc_image_reader *r, const char *name, int32_t width, int32_t height,
                                   int32_t channels, bool planes, const dsc_image_transform *t,
                                   const dsc_image_key *key, dsc_error *err)
{
    const int64_t area = (int64_t)width * height;
    dsc_image_cut cut;
    DSC_ASSERT(channels == 1 || channels == DSC_IMAGE_CHANNELS);
    DSC_TRY(dsc_image_resize(&r->from, name, width, height, err));
    for (int64_t i = 0; i < area; i++)
        for (int c = 0; c < DSC_IMAGE_CHANNELS; c++) {
            const int64_t channel = channels == 1 ? 0 : c;
            r->from.pixels[DSC_IMAGE_CHANNELS * i + c] = r->data[planes ? channel * area + i : channels * i + channel];
        }
    dsc_image_plan_cut(t, key, width, height, &cut);
    return dsc_image_augment(&r->augmenter, t, key, &cut, name, &r->from, &r->out, err);
}
