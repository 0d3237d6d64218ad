/* test_pictures.c - files of pictures: packed, IDX and CIFAR, read whole, and refused where a field does not fit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/data/pictures.h"

static char folder[] = "/tmp/dsc-pictures-XXXXXX", file[300];
static unsigned char made[1 << 16];

static const char *write_made(const char *name, int64_t bytes)
{
    snprintf(file, sizeof file, "%s/%s", folder, name);
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(made, 1, (size_t)bytes, out), bytes);
    fclose(out);
    return file;
}

static void put_le(int64_t at, int64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        made[at + i] = (unsigned char)((uint64_t)value >> (8 * i));
}

static void put_be(int64_t at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        made[at + i] = (unsigned char)(value >> (24 - 8 * i));
}

enum { COUNT = 3, HEIGHT = 2, WIDTH = 4, CHANNELS = 3, PIXELS = HEIGHT * WIDTH * CHANNELS };

/* Pixel j of picture i is i * 50 + j; classes are 2, 0, 1. Its bytes. */
static int64_t make_packed(void)
{
    memset(made, 0, sizeof made);
    memcpy(made, DSC_PICTURE_MAGIC, DSC_PICTURE_MAGIC_BYTES);
    put_le(8, COUNT, 8);
    put_le(16, HEIGHT, 4), put_le(20, WIDTH, 4), put_le(24, CHANNELS, 4), put_le(28, 3, 4);
    for (int i = 0; i < COUNT; i++) {
        put_le(64 + 4 * i, (i + 2) % 3, 4);
        for (int j = 0; j < PIXELS; j++)
            made[64 + 4 * COUNT + i * PIXELS + j] = (unsigned char)(i * 50 + j);
    }
    return 64 + 4 * COUNT + COUNT * PIXELS;
}

static void assert_refused(const char *path, const char *words)
{
    dsc_picture_file pictures;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_picture_file_open(NULL, path, &pictures, &err), DSC_ERR_INPUT);
    if (strstr(err.message, words) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", words, err.message);
}

static void a_packed_file_has_its_pictures_and_classes(void **state)
{
    (void)state;
    dsc_picture_file pictures;
    uint8_t pixels[PIXELS];
    int32_t label = -1;
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_picture_file_open(NULL, write_made("a.pictures", make_packed()), &pictures, NULL), DSC_OK);
    assert_int_equal(pictures.count, COUNT);
    assert_int_equal(pictures.classes, 3);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(dsc_picture_file_read(NULL, &pictures, i, 3, pixels, &label, NULL), DSC_OK);
        assert_int_equal(label, (i + 2) % 3);
        assert_int_equal(pixels[0], i * 50);
        assert_int_equal(pixels[PIXELS - 1], i * 50 + PIXELS - 1);
    }
    assert_int_equal(dsc_picture_file_read(NULL, &pictures, 0, 2, pixels, &label, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "picture 0 has class 2, and the model has 2 classes"));
    dsc_picture_file_close(NULL, &pictures);
}

static void a_packed_header_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        int at, bytes;
        int64_t value;
        const char *words;
    } wrong[] = { { 8, 8, 0, "the header says 0 pictures" },
                  { 8, 8, -1, "the header says -1 pictures" },
                  { 8, 8, 4, "are not those of 4 pictures" },
                  { 8, 8, INT64_MAX, "are not those of" },
                  { 8, 8, INT64_C(1) << 61, "are not those of" },
                  { 16, 4, 0, "of 0 by 4" },
                  { 16, 4, -5, "of -5 by 4" },
                  { 20, 4, INT32_MAX, "sides from 1 to 16384" },
                  { 24, 4, 65, "channels from 1 to 64" },
                  { 24, 4, 1, "are not those of" },
                  { 28, 4, 0, "0 classes" },
                  { 40, 1, 7, "byte 40 of the header is 7; expected 0" } };
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        const int64_t bytes = make_packed();
        put_le(wrong[i].at, wrong[i].value, wrong[i].bytes);
        assert_refused(write_made("b.pictures", bytes), wrong[i].words);
    }
    for (int64_t bytes = 8; bytes < make_packed(); bytes += 13)
        assert_refused(write_made("c.pictures", bytes), bytes < 64 ? "truncated: " : "(truncated?)");
}

static void idx_files_are_read_with_the_labels_beside_them(void **state)
{
    (void)state;
    dsc_picture_file pictures;
    uint8_t pixels[6];
    int32_t label = -1;
    memset(made, 0, sizeof made);
    put_be(0, 0x801), put_be(4, 2);
    made[8] = 7, made[9] = 4;
    (void)write_made("t-labels-idx1-ubyte", 10);
    put_be(0, 0x803), put_be(4, 2), put_be(8, 2), put_be(12, 3);
    for (int i = 0; i < 12; i++)
        made[16 + i] = (unsigned char)(100 + i);
    assert_int_equal(dsc_picture_file_open(NULL, write_made("t-images-idx3-ubyte", 28), &pictures, NULL), DSC_OK);
    assert_int_equal(pictures.channels, 1);
    assert_int_equal(dsc_picture_file_read(NULL, &pictures, 1, 10, pixels, &label, NULL), DSC_OK);
    assert_int_equal(label, 4);
    assert_int_equal(pixels[5], 111);
    int64_t classes = 0;
    assert_int_equal(dsc_picture_file_classes(NULL, &pictures, &classes, NULL), DSC_OK);
    assert_int_equal(classes, 8); /* the highest label is 7 */
    dsc_picture_file_close(NULL, &pictures);
    assert_refused(write_made("t-images-idx3-ubyte", 27), "are not those of an IDX file");
    assert_refused(write_made("other", 28), "needs \"images\" and \"idx3\"");
    put_be(4, 1);
    assert_refused(write_made("t-images-idx3-ubyte", 22), "not the labels of 1 pictures");
}

static void cifar_files_are_known_by_their_size(void **state)
{
    (void)state;
    dsc_picture_file pictures;
    static uint8_t pixels[3072];
    int32_t label = -1;
    for (int labels = 1; labels <= 2; labels++) {
        const int record = labels + 3072;
        memset(made, 0, sizeof made);
        made[record] = 1, made[record + labels - 1] = 9, made[record + labels] = 33;
        assert_int_equal(dsc_picture_file_open(NULL, write_made("c.bin", 2 * record), &pictures, NULL), DSC_OK);
        assert_int_equal(pictures.count, 2);
        assert_true(pictures.planes);
        assert_int_equal(dsc_picture_file_read(NULL, &pictures, 1, 100, pixels, &label, NULL), DSC_OK);
        assert_int_equal(label, 9);
        assert_int_equal(pixels[0], 33);
        dsc_picture_file_close(NULL, &pictures);
    }
    assert_refused(write_made("c.bin", 3000), "not a file of pictures");
    memcpy(made, "\x89PNG", 4);
    assert_refused(write_made("c.png", 3073), "a PNG");
    made[0] = 0xff, made[1] = 0xd8;
    assert_refused(write_made("c.jpg", 100), "a JPEG");
    assert_refused(write_made("empty", 0), "not a file of pictures");
}

/* ---- samples ---- */

static dsc_status open_pictures(const char *path, bool shuffle, int64_t planes, dsc_pictures **out, dsc_error *err)
{
    static dsc_alloc *alloc; /* until the program ends */
    if (alloc == NULL)
        assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    const char *const paths[] = { path, path };
    dsc_picture_options options = { .alloc = alloc,
                                    .paths = paths,
                                    .path_count = 2,
                                    .planes = planes,
                                    .height = HEIGHT,
                                    .width = WIDTH,
                                    .classes = 3,
                                    .shuffle = shuffle,
                                    .seed = 5,
                                    .norm = { .rescale = 0.5 } };
    for (int i = 0; i < CHANNELS; i++)
        options.norm.mean[i] = i, options.norm.std[i] = 2;
    return dsc_pictures_open(&options, out, err);
}

static void samples_are_normalised_planes(void **state)
{
    (void)state;
    dsc_pictures *pictures = NULL;
    dsc_error err = DSC_ERROR_INIT;
    float pixels[2 * PIXELS];
    int32_t labels[2];
    void *const batch[] = { pixels, labels };
    const char *path = write_made("n.pictures", make_packed());
    assert_int_equal(open_pictures(path, false, CHANNELS, &pictures, NULL), DSC_OK);
    const dsc_data_source source = dsc_pictures_as_source(pictures);
    assert_int_equal(source.sample_count, 2 * COUNT);
    assert_int_equal(source.fill(source.user, 2 * COUNT + 1, 2, batch, NULL), DSC_OK); /* of the second epoch */
    assert_int_equal(labels[0], 0);
    assert_int_equal(labels[1], 1);
    for (int plane = 0; plane < CHANNELS; plane++)
        for (int i = 0; i < HEIGHT * WIDTH; i++)
            assert_true(pixels[plane * HEIGHT * WIDTH + i] == (float)((0.5 * (50 + 3 * i + plane) - plane) / 2));
    dsc_pictures_close(&pictures);
    assert_int_equal(open_pictures(path, false, 4, &pictures, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "the model takes 2 by 4 with 4"));
}

static void drawn_pictures_are_samples_with_names(void **state)
{
    (void)state;
    dsc_pictures *pictures = NULL;
    int64_t count = 0;
    float pixels[2 * PIXELS];
    int32_t labels[2] = { -1, -1 };
    void *const batch[] = { pixels, labels };
    assert_int_equal(open_pictures(DSC_SHAPES_TEST_NAME, false, CHANNELS, &pictures, NULL), DSC_OK);
    const dsc_data_source source = dsc_pictures_as_source(pictures);
    assert_int_equal(source.sample_count, 2 * dsc_shapes_count(DSC_SHAPES_TEST)); /* the path is given twice */
    assert_int_equal(source.fill(source.user, 1, 2, batch, NULL), DSC_OK);
    assert_int_equal(labels[0], 1);
    assert_int_equal(labels[1], 2);
    const char *const *names = dsc_pictures_class_names(pictures, &count);
    assert_int_equal(count, 3); /* as many as the model has */
    assert_string_equal(names[2], "triangle");
    dsc_pictures_close(&pictures);
}

static void a_class_out_of_range_is_refused_when_files_are_opened(void **state)
{
    (void)state;
    dsc_pictures *pictures = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int64_t bytes = make_packed();
    const int32_t wrong = 3;
    memcpy(made + DSC_PICTURE_HEADER_BYTES + 4 * (COUNT - 1), &wrong, sizeof wrong);
    assert_int_equal(open_pictures(write_made("w.pictures", bytes), false, CHANNELS, &pictures, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "picture 2 has class 3, and the model has 3 classes"));
    assert_null(pictures);
}

static void an_epoch_has_each_sample_once(void **state)
{
    (void)state;
    dsc_pictures *pictures = NULL;
    float pixels[PIXELS];
    int32_t label;
    void *const batch[] = { pixels, &label };
    assert_int_equal(open_pictures(write_made("n.pictures", make_packed()), true, CHANNELS, &pictures, NULL), DSC_OK);
    const dsc_data_source source = dsc_pictures_as_source(pictures);
    for (int epoch = 0; epoch < 4; epoch++) {
        int seen[3] = { 0 };
        for (int i = 0; i < 2 * COUNT; i++) {
            assert_int_equal(source.fill(source.user, 2 * COUNT * epoch + i, 1, batch, NULL), DSC_OK);
            seen[label]++;
        }
        assert_true(seen[0] == 2 && seen[1] == 2 && seen[2] == 2);
    }
    dsc_pictures_close(&pictures);
}

static dsc_status read_norm(dsc_alloc *alloc, dsc_picture_norm *norm, bool *found, dsc_error *err)
{
    dsc_image_preprocessor p;
    DSC_TRY(dsc_image_preprocessor_open(NULL, alloc, folder, &p, err));
    *found = p.json != NULL;
    const dsc_status status = dsc_picture_norm_load(&p, 3, norm, err);
    dsc_image_preprocessor_close(&p);
    return status;
}

static void a_preprocessor_says_mean_and_std(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } wrong[] = { { "{\"image_mean\": [1, 2]}", "\"image_mean\" must have a number for each of the 3 channels" },
                  { "{\"image_std\": [1, 2, 0]}", "\"image_std\" must be 1e-6 or more" },
                  { "{\"image_std\": \"x\"}", "\"image_std\" must have a number" },
                  { "{\"rescale_factor\": -1}", "\"rescale_factor\" must be a number above 0" } };
    dsc_alloc *alloc = NULL;
    dsc_picture_norm norm;
    bool found = true;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    assert_int_equal(read_norm(alloc, &norm, &found, NULL), DSC_OK);
    assert_false(found);
    assert_true(norm.mean[2] == 0.5 && norm.std[2] == 0.5);
    for (size_t i = 0; i < DSC_COUNT(wrong); i++) {
        dsc_error err = DSC_ERROR_INIT;
        memcpy(made, wrong[i].text, strlen(wrong[i].text));
        (void)write_made("preprocessor_config.json", (int64_t)strlen(wrong[i].text));
        assert_int_equal(read_norm(alloc, &norm, &found, &err), DSC_ERR_INPUT);
        assert_non_null(strstr(err.message, wrong[i].words));
    }
    const char *text = "{\"image_mean\": [0.1, 0.2, 0.3], \"image_std\": 0.25, \"do_rescale\": false}";
    memcpy(made, text, strlen(text));
    (void)write_made("preprocessor_config.json", (int64_t)strlen(text));
    assert_int_equal(read_norm(alloc, &norm, &found, NULL), DSC_OK);
    assert_true(found && norm.mean[1] == 0.2 && norm.std[2] == 0.25 && norm.rescale == 1);
    dsc_alloc_close(&alloc);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[400];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_packed_file_has_its_pictures_and_classes),
        cmocka_unit_test(a_packed_header_that_does_not_fit_is_refused),
        cmocka_unit_test(idx_files_are_read_with_the_labels_beside_them),
        cmocka_unit_test(cifar_files_are_known_by_their_size),
        cmocka_unit_test(samples_are_normalised_planes),
        cmocka_unit_test(drawn_pictures_are_samples_with_names),
        cmocka_unit_test(a_class_out_of_range_is_refused_when_files_are_opened),
        cmocka_unit_test(an_epoch_has_each_sample_once),
        cmocka_unit_test(a_preprocessor_says_mean_and_std),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
