/* image_fuzz.c - any bytes as a JPEG, PNG or WebP picture: no crash, and a picture of the size that its header says.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/augment.h"

#define PIXELS_MAX (1 << 16) /* larger ones are refused: they take time */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const dsc_image_info *info, const dsc_image *image)
{
    DSC_ASSERT(image->width == info->width && image->height == info->height);
    DSC_ASSERT((int64_t)image->width * image->height <= PIXELS_MAX);
}

static void augment(const dsc_image *image)
{
    static const dsc_image_transform transform = { .random_crop = true,
                                                   .scale = { 0.08, 1 },
                                                   .ratio = { 0.75, 1.33 },
                                                   .flip = 0.5,
                                                   .hue = 0.5,
                                                   .width = 9,
                                                   .height = 7 };
    const dsc_image_key key = { 1, 2, 3 };
    dsc_augmenter augmenter = { .resized = DSC_IMAGE_INIT };
    dsc_image out = DSC_IMAGE_INIT;
    dsc_image_cut cut;
    dsc_image_plan_cut(&transform, &key, image->width, image->height, &cut);
    DSC_ASSERT(dsc_image_augment(&augmenter, &transform, &key, &cut, "x", image, &out, NULL) == DSC_OK);
    DSC_ASSERT(out.width == 9 && out.height == 7);
    dsc_augmenter_free(&augmenter);
    dsc_image_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_image_decoder *decoder = NULL;
    dsc_image image = DSC_IMAGE_INIT;
    dsc_image_info info;
    dsc_error err = DSC_ERROR_INIT;
    DSC_ASSERT(dsc_image_decoder_open(PIXELS_MAX, &decoder, NULL) == DSC_OK);
    dsc_status status = dsc_image_decoder_read_info(decoder, "x", data, (int64_t)bytes, &info, &err);
    if (status == DSC_OK)
        status = dsc_image_decoder_run(decoder, "x", data, (int64_t)bytes, &info, 8, &image, &err);
    DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
    DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
    if (status == DSC_OK) {
        check(&info, &image);
        augment(&image);
    }
    dsc_image_free(&image);
    dsc_image_decoder_close(&decoder);
    return 0;
}
