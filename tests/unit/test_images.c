/* test_images.c - pictures without their library, hostile headers, random numbers of samples, and threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/data/files.h"
#include "engine/data/images/augment.h"
#include "engine/data/images/mix.h"
#include "engine/data/images/preprocessor.h"
#include "engine/data/images/resample_sums.h"
#include "engine/data/images/shapes.h"
#include "engine/data/images/workers.h"

/* The code under test opens its libraries by this one. */
static bool hides;
void *dlopen(const char *name, int flags)
{
    static void *(*found)(const char *, int);
    if (found == NULL)
        *(void **)&found = dlsym(RTLD_NEXT, "dlopen");
    return hides ? NULL : found(name, flags);
}

static int64_t put(uint8_t *at, const void *bytes, int64_t count)
{
    memcpy(at, bytes, (size_t)count);
    return count;
}

/* A JPEG file of `scans` scans without a coefficient: markers alone. */
static int64_t make_jpeg(uint8_t *out, int frame, int width, int height, int components, int scans)
{
    static const uint8_t table[] = { 0xff, 0xdb, 0, 67, 0 };
    int64_t n = put(out, "\xff\xd8", 2);
    n += put(out + n, table, sizeof table);
    memset(out + n, 1, 64);
    n += 64;
    const uint8_t head[] = { 0xff,
                             (uint8_t)frame,
                             0,
                             (uint8_t)(8 + 3 * components),
                             8,
                             (uint8_t)(height >> 8),
                             (uint8_t)height,
                             (uint8_t)(width >> 8),
                             (uint8_t)width,
                             (uint8_t)components };
    n += put(out + n, head, sizeof head);
    for (int c = 0; c < components; c++)
        n += put(out + n, (uint8_t[]) { (uint8_t)(c + 1), 0x11, 0 }, 3);
    /* A table with one code, which ends the block: of DC and of AC. */
    for (int kind = 0; kind < 2; kind++) {
        n += put(out + n, (uint8_t[]) { 0xff, 0xc4, 0, 20, (uint8_t)(kind << 4), 1 }, 6);
        memset(out + n, 0, 16);
        n += 16;
    }
    for (int s = 0; s < scans; s++) {
        n += put(out + n, (uint8_t[]) { 0xff, 0xda, 0, (uint8_t)(6 + 2 * components), (uint8_t)components }, 5);
        for (int c = 0; c < components; c++)
            n += put(out + n, (uint8_t[]) { (uint8_t)(c + 1), 0 }, 2);
        n += put(out + n, frame == 0xc2 ? (uint8_t[]) { 0, 0, 0, 0 } : (uint8_t[]) { 0, 63, 0, 0 }, 4);
    }
    return n + put(out + n, "\xff\xd9", 2);
}

static dsc_status decode(const uint8_t *data, int64_t bytes, dsc_image *image, dsc_error *err)
{
    dsc_image_decoder *decoder = NULL;
    dsc_image_info info;
    assert_int_equal(dsc_image_decoder_open(DSC_IMAGE_PIXELS_MAX, &decoder, NULL), DSC_OK);
    dsc_status status = dsc_image_decoder_read_info(decoder, "x", data, bytes, &info, err);
    if (status == DSC_OK)
        status = dsc_image_decoder_run(decoder, "x", data, bytes, &info, 8, image, err);
    dsc_image_decoder_close(&decoder);
    return status;
}

static void assert_refused(const uint8_t *data, int64_t bytes, dsc_status status, const char *words)
{
    dsc_image image = DSC_IMAGE_INIT;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(decode(data, bytes, &image, &err), status);
    if (strstr(err.message, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, err.message);
    dsc_image_free(&image);
}

static void a_missing_library_is_named_with_its_package(void **state)
{
    static const uint8_t png[40] = "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x02\0\0\0\x02";
    static const uint8_t webp[] = "RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\x01\x40\0\0\0\0\0\0\0\0\0\0\0";
    uint8_t jpeg[400];
    (void)state;
    hides = true;
    assert_refused(jpeg, make_jpeg(jpeg, 0xc0, 8, 8, 3, 1), DSC_ERR_UNSUPPORTED,
                   "the picture is JPEG, and libturbojpeg.so.0 is not installed; install the package libturbojpeg0");
    assert_refused(png, sizeof png, DSC_ERR_UNSUPPORTED,
                   "libpng16.so.16 is not installed; install the package libpng16-16");
    assert_refused(webp, sizeof webp - 1, DSC_ERR_UNSUPPORTED,
                   "libwebp.so.7 is not installed; install the package libwebp7");
    hides = false;
}

static void headers_beyond_a_limit_take_no_memory(void **state)
{
    static uint8_t jpeg[20000];
    (void)state;
    assert_refused(jpeg, make_jpeg(jpeg, 0xc0, 65535, 65535, 3, 1), DSC_ERR_INPUT, "65535 by 65535 pixels, and");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc0, 4096, 4096, 4, 1), DSC_ERR_INPUT, "of four channels, and");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc0, 0, 4, 3, 1), DSC_ERR_INPUT, "0 by 4 pixels; expected 1 or more");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc2, 8, 8, 3, 65), DSC_ERR_INPUT, "more than 64 scans");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc2, 4096, 4096, 3, 30), DSC_ERR_INPUT, "30 scans of 16777216 pixels");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc3, 8, 8, 3, 1), DSC_ERR_INPUT, "expected baseline or progressive");
    assert_refused(jpeg, make_jpeg(jpeg, 0xc0, 8, 8, 3, 1) - 2, DSC_ERR_INPUT, "it has no end marker");
    assert_refused(jpeg, 0, DSC_ERR_INPUT, "the file is empty");
}

static void long_pictures_are_not_resized_to_longer_ones(void **state)
{
    dsc_image image = DSC_IMAGE_INIT, out = DSC_IMAGE_INIT;
    dsc_augmenter augmenter = { .resized = DSC_IMAGE_INIT };
    dsc_error err = DSC_ERROR_INIT;
    dsc_image_cut cut;
    const dsc_image_transform t = { .resize = 256, .width = 224, .height = 224 };
    const dsc_image_key key = { 1, 2, 3 };
    (void)state;
    assert_int_equal(dsc_image_resize(&image, "x", 1 << 20, 1, NULL), DSC_OK);
    memset(image.pixels, 0, (size_t)image.capacity);
    dsc_image_plan_cut(&t, &key, image.width, image.height, &cut);
    assert_int_equal(dsc_image_augment(&augmenter, &t, &key, &cut, "long.png", &image, &out, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "cut such long pictures to parts"));
    dsc_augmenter_free(&augmenter);
    dsc_image_free(&image);
    dsc_image_free(&out);
}

static void random_numbers_depend_on_seed_epoch_and_sample(void **state)
{
    const dsc_image_key a = { 1, 2, 3 }, others[] = { { 2, 2, 3 }, { 1, 3, 3 }, { 1, 2, 4 } };
    (void)state;
    assert_true(dsc_image_uniform(&a, 0) == dsc_image_uniform(&a, 0));
    for (int draw = 0; draw < DSC_IMAGE_DRAWS; draw++) {
        assert_true(dsc_image_uniform(&a, draw) >= 0 && dsc_image_uniform(&a, draw) < 1);
        for (size_t i = 0; i < DSC_COUNT(others); i++)
            assert_true(dsc_image_uniform(&a, draw) != dsc_image_uniform(&others[i], draw));
        for (int other = 0; other < draw; other++)
            assert_true(dsc_image_uniform(&a, draw) != dsc_image_uniform(&a, other));
    }
}

static dsc_status count_part(void *user, int32_t thread, int64_t part, dsc_error *err)
{
    int32_t *done = user;
    (void)thread;
    done[part]++;
    return part % 10 == 7 ? DSC_FAIL(err, DSC_ERR_INPUT, "part", "%lld", (long long)part) : DSC_OK;
}

/* The sum of a result as resample.h says it, from weights that a table has. */
static uint8_t summed(const uint8_t *from, int64_t step, const int32_t *head)
{
    int64_t sum = DSC_RESAMPLE_HALF;
    for (int32_t k = 0; k < head[1]; k++)
        sum += (int64_t)from[(head[0] + k) * step] * head[DSC_RESAMPLE_HEAD + k];
    sum >>= DSC_RESAMPLE_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void vectors_have_the_sums_of_plain_c(void **state)
{
    enum { WIDTH = 37, HEIGHT = 9, OUT = 11, MOST = 12, STRIDE = DSC_RESAMPLE_HEAD + MOST, ROW = WIDTH * 3 };
    static uint8_t pixels[HEIGHT * ROW + DSC_IMAGE_SPARE_BYTES], along[HEIGHT * OUT * 3], across[2 * ROW + 64];
    static int32_t number[OUT * STRIDE];
    const dsc_resample_weights w = { number, STRIDE };
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2"))
        skip();
#else
    skip();
#endif
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i % 7 == 0 ? 255 : dsc_rng_u32(3, 0, i));
    for (int32_t x = 0; x < OUT; x++) {
        int32_t *head = number + x * STRIDE;
        head[0] = x % 3, head[1] = 1 + x % HEIGHT % 7;
        for (int32_t k = 0; k < head[1]; k++) /* up to those of a cubic filter, also below 0 */
            head[DSC_RESAMPLE_HEAD + k] =
                (int32_t)(dsc_rng_u32(4, 0, (uint64_t)(x * STRIDE + k)) % (1 << 20)) - (1 << 17);
    }
    for (int32_t y = 0; y < HEIGHT; y += DSC_RESAMPLE_ROWS)
        dsc_resample_along_avx2(pixels + y * ROW, ROW, (int32_t)dsc_min_i64(DSC_RESAMPLE_ROWS, HEIGHT - y), &w, OUT,
                                along + y * OUT * 3, OUT * 3);
    for (int32_t i = 0; i < HEIGHT * OUT * 3; i++)
        assert_int_equal(along[i], summed(pixels + i / (OUT * 3) * ROW + i % 3, 3, number + i / 3 % OUT * STRIDE));
    for (int32_t y = 0; y < OUT; y++) {
        const int32_t *head = number + y * STRIDE;
        dsc_resample_across_avx2(pixels, ROW, head, ROW, across);
        for (int32_t i = 0; i < ROW; i++)
            assert_int_equal(across[i], summed(pixels + i, ROW, head));
    }
}

static void pictures_are_mixed_with_those_before_them(void **state)
{
    enum { COUNT = 3, PLANES = 2, HEIGHT = 4, WIDTH = 5, EACH = PLANES * HEIGHT * WIDTH };
    const dsc_mix add = { .share = 0.25 },
                  cut = { .share = 0.2, .cut = true, .left = 1, .top = 2, .right = 3, .bottom = 4 };
    const dsc_mix *const all[] = { &add, &cut };
    float pixels[COUNT * EACH];
    (void)state;
    for (size_t k = 0; k < DSC_COUNT(all); k++) {
        for (int i = 0; i < COUNT * EACH; i++)
            pixels[i] = (float)(i / EACH * 1000 + i % EACH);
        dsc_mix_run(all[k], COUNT, PLANES, HEIGHT, WIDTH, pixels);
        for (int i = 0; i < COUNT * EACH; i++) {
            const int x = i % WIDTH, y = i / WIDTH % HEIGHT, before = (i / EACH + COUNT - 1) % COUNT;
            const bool inside = x >= 1 && x < 3 && y >= 2;
            const float own = (float)(i / EACH * 1000 + i % EACH), other = (float)(before * 1000 + i % EACH);
            const float expected = !all[k]->cut ? other * 0.25f + own * 0.75f : inside ? other : own;
            assert_true(pixels[i] == expected);
        }
    }
}

static void mixing_depends_on_the_seed_and_the_first_sample(void **state)
{
    const dsc_mix_options both = { .mixup = 0.2, .cutmix = 1, .probability = 0.75, .switch_probability = 0.5 };
    int mixed = 0, cut = 0, moved = 0;
    dsc_mix mix, again, other;
    (void)state;
    for (uint64_t first = 0; first < 4000; first++) {
        dsc_mix_choose(&both, 7, first * 8, 6, 9, &mix);
        dsc_mix_choose(&both, 7, first * 8, 6, 9, &again);
        dsc_mix_choose(&both, 8, first * 8, 6, 9, &other);
        assert_memory_equal(&mix, &again, sizeof mix);
        moved += mix.share != other.share;
        mixed += mix.share > 0;
        cut += mix.cut;
        assert_true(mix.share >= 0 && mix.share <= 1);
        assert_true(mix.left >= 0 && mix.top >= 0 && mix.right <= 9 && mix.bottom <= 6);
        assert_true(!mix.cut || (mix.left <= mix.right && mix.top <= mix.bottom));
        assert_true(!mix.cut || mix.share == (mix.right - mix.left) * (mix.bottom - mix.top) / 54.0);
    }
    assert_true(moved > 3000);
    assert_in_range(mixed, 2000, 3000); /* some rectangles have no pixel */
    assert_in_range(cut, 1400, 1600);
    dsc_mix_choose(&(dsc_mix_options) { .mixup = 1 }, 7, 0, 6, 9, &mix);
    assert_true(mix.share == 0);
    for (double alpha = 1e-3; alpha < 2000; alpha *= 10)
        for (uint64_t first = 0; first < 100; first++) {
            const double number = dsc_mix_beta(alpha, 7, first);
            assert_true(number >= 0 && number <= 1);
        }
}

static void each_part_runs_once_and_the_first_failure_is_reported(void **state)
{
    int32_t done[100];
    dsc_workers *workers = NULL;
    (void)state;
    assert_int_equal(dsc_workers_open(4, count_part, done, &workers, NULL), DSC_OK);
    for (int round = 0; round < 200; round++) {
        dsc_error err = DSC_ERROR_INIT;
        memset(done, 0, sizeof done);
        assert_int_equal(dsc_workers_run(workers, 7, NULL), DSC_OK);
        for (int i = 0; i < 7; i++)
            assert_int_equal(done[i], 1);
        assert_int_equal(dsc_workers_run(workers, 100, &err), DSC_ERR_INPUT);
        assert_string_equal(err.message, "7");
    }
    dsc_workers_close(&workers);
}

static dsc_status read_sizes(dsc_alloc *alloc, const char *folder, dsc_image_transform *out, dsc_error *err)
{
    dsc_image_preprocessor p;
    DSC_TRY(dsc_image_preprocessor_open(NULL, alloc, folder, &p, err));
    const dsc_status status = dsc_image_preprocessor_sizes(&p, out, err);
    dsc_image_preprocessor_close(&p);
    return status;
}

static dsc_status read_config(const char *name, const char *text, dsc_image_transform *out, dsc_error *err)
{
    char folder[] = "/tmp/dsc-images-XXXXXX", path[64];
    dsc_alloc *alloc = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), NULL), DSC_OK);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    *out = (dsc_image_transform) { .width = 224, .height = 224 };
    const dsc_status status = read_sizes(alloc, folder, out, err);
    dsc_alloc_close(&alloc);
    assert_int_equal(dsc_io_remove_dir(NULL, folder, NULL), DSC_OK);
    return status;
}

static dsc_status read_preprocessor(const char *text, dsc_image_transform *out, dsc_error *err)
{
    return read_config("preprocessor_config.json", text, out, err);
}

/* As ViTImageProcessor, CLIPImageProcessor and ConvNextImageProcessor write them. */
static void sizes_of_a_preprocessor_are_those_of_transformers(void **state)
{
    static const struct {
        const char *text;
        int32_t resize, width, height;
        dsc_resample_filter filter;
    } good[] = {
        { "{}", 256, 0, 0, DSC_RESAMPLE_BILINEAR },
        { "{\"size\": {\"height\": 224, \"width\": 200}, \"resample\": 2}", 0, 200, 224, DSC_RESAMPLE_BILINEAR },
        { "{\"size\": 224}", 0, 224, 224, DSC_RESAMPLE_BILINEAR },
        { "{\"size\": {\"shortest_edge\": 224}, \"resample\": 3}", 224, 0, 0, DSC_RESAMPLE_BICUBIC },
        { "{\"size\": {\"shortest_edge\": 224}, \"crop_pct\": 0.875}", 256, 0, 0, DSC_RESAMPLE_BILINEAR },
        { "{\"size\": 224, \"do_center_crop\": true}", 224, 0, 0, DSC_RESAMPLE_BILINEAR },
        { "{\"do_resize\": false, \"size\": 300}", 0, 0, 0, DSC_RESAMPLE_BILINEAR },
    };
    static const char *const bad[] = { "{\"size\": 0}",   "{\"size\": {\"width\": 3}}", "{\"size\": 1e9}",
                                       "{\"size\": 2.5}", "{\"crop_pct\": 0}",          "{\"resample\": 1}" };
    dsc_image_transform t;
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(good); i++) {
        assert_int_equal(read_preprocessor(good[i].text, &t, NULL), DSC_OK);
        assert_int_equal(t.resize, good[i].resize);
        assert_int_equal(t.resize_width, good[i].width);
        assert_int_equal(t.resize_height, good[i].height);
        assert_int_equal(t.filter, good[i].filter);
    }
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_error err = DSC_ERROR_INIT;
        assert_int_not_equal(read_preprocessor(bad[i], &t, &err), DSC_OK);
        assert_true(err.message[0] != 0);
    }
}

/* tests/cli/convnets.py compares pictures with those of timm's create_transform. */
static void sizes_of_a_config_of_timm_are_those_of_its_transform(void **state)
{
    static const struct {
        const char *keys; /* of "pretrained_cfg", beside "mean" */
        int32_t resize, side;
        dsc_resample_filter filter;
    } good[] = {
        { "", 256, 0, DSC_RESAMPLE_BICUBIC },
        { ", \"crop_pct\": 0.95, \"interpolation\": \"bilinear\"", 235, 0, DSC_RESAMPLE_BILINEAR },
        { ", \"crop_pct\": 1.0, \"crop_mode\": \"center\"", 224, 0, DSC_RESAMPLE_BICUBIC },
        { ", \"crop_pct\": 0.95, \"crop_mode\": \"squash\"", 0, 235, DSC_RESAMPLE_BICUBIC },
    };
    static const char *const bad[] = { ", \"crop_pct\": 0", ", \"crop_pct\": \"all\"", ", \"crop_mode\": \"border\"",
                                       ", \"interpolation\": \"lanczos\"", ", \"interpolation\": 3" };
    char text[300];
    dsc_image_transform t;
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(good); i++) {
        snprintf(text, sizeof text, "{\"pretrained_cfg\": {\"mean\": [0.5, 0.5, 0.5]%s}}", good[i].keys);
        assert_int_equal(read_config("config.json", text, &t, NULL), DSC_OK);
        assert_int_equal(t.resize, good[i].resize);
        assert_int_equal(t.resize_width, good[i].side);
        assert_int_equal(t.resize_height, good[i].side);
        assert_int_equal(t.filter, good[i].filter);
    }
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        dsc_error err = DSC_ERROR_INIT;
        snprintf(text, sizeof text, "{\"pretrained_cfg\": {\"mean\": [0.5, 0.5, 0.5]%s}}", bad[i]);
        assert_int_not_equal(read_config("config.json", text, &t, &err), DSC_OK);
        assert_non_null(strstr(err.message, "pretrained_cfg"));
    }
}

static void a_range_in_a_name_is_a_list_of_files(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    (void)state;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    dsc_data_files files = { .alloc = alloc };
    assert_int_equal(dsc_data_files_add(&files, "/no/a-{008..010}-{1..2}.tar", 3, NULL), DSC_OK);
    assert_int_equal(files.count, 6);
    assert_string_equal(files.path[0], "/no/a-008-1.tar");
    assert_string_equal(files.path[5], "/no/a-010-2.tar");
    assert_int_equal(files.entry[5], 3);
    assert_int_equal(dsc_data_files_add(&files, "/no/{9..1}", 0, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_data_files_add(&files, "/no/{1..999999999}", 0, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_data_files_add(&files, "/no/{1..99999}{1..99999}", 0, &err), DSC_ERR_INPUT);
    dsc_data_files_free(&files);
    assert_int_equal(dsc_data_files_add(&files, "/no/{a..b}", 0, NULL), DSC_OK);
    assert_string_equal(files.path[0], "/no/{a..b}");
    dsc_data_files_free(&files);
    dsc_alloc_close(&alloc);
}

static void a_drawn_picture_has_the_same_bytes_everywhere(void **state)
{
    enum { SIDE = 32, PIXELS = SIDE * SIDE * 3 };
    static uint8_t one[PIXELS], other[PIXELS];
    int64_t of_class[DSC_SHAPES_CLASSES] = { 0 };
    uint64_t sum = 0;
    (void)state;
    for (int64_t i = 0; i < 40; i++) {
        of_class[dsc_shapes_draw(DSC_SHAPES_TRAIN, i, SIDE, SIDE, 3, DSC_SHAPES_CLASSES, one)]++;
        (void)dsc_shapes_draw(DSC_SHAPES_TEST, i, SIDE, SIDE, 3, DSC_SHAPES_CLASSES, other);
        assert_memory_not_equal(one, other, PIXELS);
        (void)dsc_shapes_draw(DSC_SHAPES_TRAIN, i, SIDE, SIDE, 3, DSC_SHAPES_CLASSES, other);
        assert_memory_equal(one, other, PIXELS);
        for (int k = 0; k < PIXELS; k++)
            sum = sum * 31 + one[k];
    }
    for (int c = 0; c < DSC_SHAPES_CLASSES; c++)
        assert_int_equal(of_class[c], 4);
    assert_int_equal(sum, UINT64_C(0x57d9654c56ba1928));
}

static void drawn_pictures_have_any_size_and_fewer_classes(void **state)
{
    static uint8_t gray[9 * 40];
    (void)state;
    assert_int_equal(dsc_shapes_draw(DSC_SHAPES_TEST, 255, 9, 40, 1, 4, gray), 3);
    assert_int_equal(dsc_shapes_find("shapes:test"), DSC_SHAPES_TEST);
    assert_int_equal(dsc_shapes_find("shapes"), DSC_SHAPES_NONE);
    assert_int_equal(dsc_shapes_count(DSC_SHAPES_TEST), 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drawn_picture_has_the_same_bytes_everywhere),
        cmocka_unit_test(drawn_pictures_have_any_size_and_fewer_classes),
        cmocka_unit_test(a_missing_library_is_named_with_its_package),
        cmocka_unit_test(headers_beyond_a_limit_take_no_memory),
        cmocka_unit_test(long_pictures_are_not_resized_to_longer_ones),
        cmocka_unit_test(random_numbers_depend_on_seed_epoch_and_sample),
        cmocka_unit_test(vectors_have_the_sums_of_plain_c),
        cmocka_unit_test(pictures_are_mixed_with_those_before_them),
        cmocka_unit_test(mixing_depends_on_the_seed_and_the_first_sample),
        cmocka_unit_test(each_part_runs_once_and_the_first_failure_is_reported),
        cmocka_unit_test(sizes_of_a_preprocessor_are_those_of_transformers),
        cmocka_unit_test(sizes_of_a_config_of_timm_are_those_of_its_transform),
        cmocka_unit_test(a_range_in_a_name_is_a_list_of_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
