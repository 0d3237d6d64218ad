/* image_cases.c - what the functions of engine/data/images/ make of pictures, for images_test.py, which compares it
 * with Pillow and torchvision. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/images/augment.h"
#include "engine/data/images/mix.h"

static uint8_t *bytes_of(const char *path, int64_t *count)
{
    FILE *in = fopen(path, "rb");
    uint8_t *data = malloc(1 << 25);
    if (in == NULL || data == NULL)
        exit(1);
    *count = (int64_t)fread(data, 1, 1 << 25, in);
    fclose(in);
    return data;
}

static void decode(const char *path, int32_t eighths, dsc_image *out)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_image_decoder *decoder = NULL;
    dsc_image_info info;
    int64_t count = 0;
    uint8_t *data = bytes_of(path, &count);
    dsc_status status = dsc_image_decoder_open(DSC_IMAGE_PIXELS_MAX, &decoder, &err);
    if (status == DSC_OK)
        status = dsc_image_decoder_read_info(decoder, path, data, count, &info, &err);
    if (status == DSC_OK)
        status = dsc_image_decoder_run(decoder, path, data, count, &info, eighths, out, &err);
    if (status != DSC_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        exit(2);
    }
    dsc_image_decoder_close(&decoder);
    free(data);
}

static void write_out(const dsc_image *image)
{
    const int32_t size[2] = { image->width, image->height };
    fwrite(size, sizeof size, 1, stdout);
    fwrite(image->pixels, 3, (size_t)image->width * (size_t)image->height, stdout);
}

static dsc_image_transform transform_of(char **numbers)
{
    return (dsc_image_transform) { .random_crop = numbers[0][0] == '1',
                                   .scale = { 0.08, 1 },
                                   .ratio = { 3.0 / 4, 4.0 / 3 },
                                   .brightness = atof(numbers[1]),
                                   .contrast = atof(numbers[2]),
                                   .saturation = atof(numbers[3]),
                                   .hue = atof(numbers[4]),
                                   .resize = atoi(numbers[5]),
                                   .width = atoi(numbers[6]),
                                   .height = atoi(numbers[7]),
                                   .filter = (dsc_resample_filter)atoi(numbers[8]),
                                   .rand_ops = atoi(numbers[9]),
                                   .rand_level = 9 };
}

/* Factors of brightness, in hundredths, that samples get. */
static void print_factors(uint64_t count)
{
    const dsc_image_transform t = { .brightness = 0.4 };
    dsc_image image = DSC_IMAGE_INIT;
    for (dsc_image_key key = { .seed = 1 }; key.sample < count; key.sample++) {
        if (dsc_image_resize(&image, "gray", 2, 2, NULL) != DSC_OK)
            exit(1);
        memset(image.pixels, 100, 12);
        dsc_image_jitter(&t, &key, &image);
        printf("%d\n", image.pixels[0]);
    }
    dsc_image_free(&image);
}

/* MIXUP CUTMIX PROBABILITY SWITCH SEED STEP COUNT SIDE: mixes of micro-batches of STEP pictures. */
static void print_mixes(char **numbers)
{
    const dsc_mix_options options = { .mixup = atof(numbers[0]),
                                      .cutmix = atof(numbers[1]),
                                      .probability = atof(numbers[2]),
                                      .switch_probability = atof(numbers[3]) };
    const uint64_t seed = (uint64_t)atoll(numbers[4]), step = (uint64_t)atoll(numbers[5]);
    const int32_t side = atoi(numbers[7]);
    for (uint64_t k = 0; k < (uint64_t)atoll(numbers[6]); k++) {
        dsc_mix mix;
        dsc_mix_choose(&options, seed, k * step, side, side, &mix);
        printf("%.17g %d %d %d %d %d\n", mix.share, mix.cut, mix.left, mix.top, mix.right, mix.bottom);
    }
}

/* decode FILE EIGHTHS | boxes WIDTH HEIGHT COUNT | transform FILE SAMPLE NUMBERS... (as transform_of takes them)
 * | mixes NUMBERS... | factors COUNT */
int main(int argc, char **argv)
{
    dsc_image image = DSC_IMAGE_INIT, out = DSC_IMAGE_INIT;
    dsc_image_key key = { .seed = 1 };
    dsc_image_cut cut;
    if (argc == 4 && strcmp(argv[1], "decode") == 0) {
        decode(argv[2], atoi(argv[3]), &image);
        write_out(&image);
    } else if (argc == 5 && strcmp(argv[1], "boxes") == 0) {
        const dsc_image_transform t = { .scale = { 0.08, 1 }, .ratio = { 3.0 / 4, 4.0 / 3 }, .flip = 0.5 };
        for (; key.sample < (uint64_t)atoi(argv[4]); key.sample++) {
            dsc_image_random_box(&t, &key, atoi(argv[2]), atoi(argv[3]), &cut.box);
            printf("%d %d %d %d %d\n", cut.box.y, cut.box.x, cut.box.height, cut.box.width,
                   dsc_image_is_mirrored(&t, &key));
        }
    } else if (argc == 14 && strcmp(argv[1], "transform") == 0) {
        dsc_augmenter augmenter = { .resized = DSC_IMAGE_INIT };
        const dsc_image_transform t = transform_of(argv + 4);
        key.sample = (uint64_t)atoi(argv[3]);
        decode(argv[2], 8, &image);
        dsc_image_plan_cut(&t, &key, image.width, image.height, &cut);
        if (dsc_image_augment(&augmenter, &t, &key, &cut, argv[2], &image, &out, NULL) != DSC_OK)
            return 2;
        write_out(&out);
        dsc_augmenter_free(&augmenter);
    } else if (argc == 10 && strcmp(argv[1], "mixes") == 0) {
        print_mixes(argv + 2);
    } else if (argc == 3 && strcmp(argv[1], "factors") == 0) {
        print_factors((uint64_t)atoll(argv[2]));
    } else {
        return 3;
    }
    dsc_image_free(&image);
    dsc_image_free(&out);
    return 0;
}
