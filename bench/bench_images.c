/* bench_images.c - decodes and changes pictures of a class folder on one core: a line with seconds for each line from
 * stdin, which has the number of pictures. Arguments: FOLDER FLAGS, of which "d" scales JPEG while decoding.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/data/pictures.h"

enum { SIDE = 224, BATCH = 32 };

static dsc_status open_folder(dsc_alloc *alloc, const char *folder, bool scales, dsc_pictures **out, dsc_error *err)
{
    const dsc_image_transform transform = { .random_crop = true,
                                            .scale = { 0.08, 1 },
                                            .ratio = { 3.0 / 4, 4.0 / 3 },
                                            .flip = 0.5,
                                            .width = SIDE,
                                            .height = SIDE };
    const dsc_picture_options options = {
        .alloc = alloc,
        .paths = &folder,
        .path_count = 1,
        .planes = 3,
        .height = SIDE,
        .width = SIDE,
        .classes = 1000,
        .norm = { 1.0 / 255, { 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 } },
        .shuffle = true,
        .seed = 1,
        .changes = { .transform = transform,
                     .enabled = true,
                     .dct_scaling = scales,
                     .readers = 1,
                     .pixels_max = DSC_IMAGE_PIXELS_MAX },
    };
    return dsc_pictures_open(&options, out, err);
}

static dsc_status run(const char *folder, bool scales, dsc_error *err)
{
    static float pixels[BATCH * 3 * SIDE * SIDE];
    static int32_t labels[BATCH];
    void *const batch[] = { pixels, labels };
    char line[64];
    dsc_alloc *alloc = NULL;
    dsc_pictures *pictures = NULL;
    DSC_TRY(dsc_alloc_open(&alloc, err));
    DSC_TRY(open_folder(alloc, folder, scales, &pictures, err));
    const dsc_data_source source = dsc_pictures_as_source(pictures);
    for (int64_t at = 0; fgets(line, sizeof line, stdin) != NULL;) {
        const int64_t start = dsc_clock_ns();
        for (int64_t left = atoll(line); left > 0; left -= BATCH, at += BATCH)
            DSC_TRY(source.fill(source.user, at, left < BATCH ? left : BATCH, batch, err));
        printf("%.9f\n", (double)(dsc_clock_ns() - start) * 1e-9);
        fflush(stdout);
    }
    dsc_pictures_close(&pictures);
    dsc_alloc_close(&alloc);
    return DSC_OK;
}

int main(int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    if (argc != 3 || run(argv[1], strchr(argv[2], 'd') != NULL, &err) != DSC_OK) {
        fprintf(stderr, "bench_images: %s: %s\n", err.where, err.message);
        return 1;
    }
    return 0;
}
