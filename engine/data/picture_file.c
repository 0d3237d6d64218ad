/* picture_file.c - see picture_file.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/picture_file.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { IDX_HEADER = 16, IDX_LABEL_HEADER = 8, CIFAR_SIDE = 32, CIFAR_PIXELS = 3 * CIFAR_SIDE * CIFAR_SIDE };
#define IDX_PICTURES 0x00000803u
#define IDX_LABELS 0x00000801u

static uint32_t big_endian(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static const char *path_of(const dsc_picture_file *file) { return file->pixels.path; }

/* Whether count pictures of this size, and what comes before them, are `bytes` bytes. */
static bool fits(const dsc_picture_file *file, int64_t before, int64_t bytes)
{
    int64_t pixels = 0;
    return dsc_mul_i64(file->count, file->height * file->width * file->channels, &pixels) && before <= bytes &&
           pixels == bytes - before;
}

static bool is_side(int64_t side) { return side >= 1 && side <= DSC_PICTURE_SIDE_MAX; }

/* ---- packed ------------------------------------------------------------------------------------------------------ */

static dsc_status check_packed(const dsc_picture_file *file, const unsigned char *header, int64_t bytes, dsc_error *err)
{
    int64_t labels = 0;
    for (int i = 32; i < DSC_PICTURE_HEADER_BYTES; i++)
        if (header[i] != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                            "byte %d of the header is %d; expected 0: the file is of a later format, or damaged", i,
                            header[i]);
    if (!is_side(file->height) || !is_side(file->width) || file->channels < 1 ||
        file->channels > DSC_PICTURE_CHANNELS_MAX || file->classes < 1 || file->count < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                        "the header says %lld pictures of %lld by %lld with %lld channels and %lld classes; expected "
                        "sides from 1 to %d, channels from 1 to %d, and one picture and class at least",
                        (long long)file->count, (long long)file->height, (long long)file->width,
                        (long long)file->channels, (long long)file->classes, DSC_PICTURE_SIDE_MAX,
                        DSC_PICTURE_CHANNELS_MAX);
    if (!dsc_mul_i64(file->count, 4, &labels) || labels > bytes ||
        !fits(file, DSC_PICTURE_HEADER_BYTES + labels, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                        "%lld bytes are not those of %lld pictures of %lld by %lld with %lld channels (truncated?)",
                        (long long)bytes, (long long)file->count, (long long)file->height, (long long)file->width,
                        (long long)file->channels);
    return DSC_OK;
}

static dsc_status open_packed(const dsc_io *io, dsc_picture_file *file, int64_t bytes, dsc_error *err)
{
    unsigned char header[DSC_PICTURE_HEADER_BYTES];
    int32_t sizes[4];
    if (bytes < DSC_PICTURE_HEADER_BYTES)
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file), "truncated: %lld bytes is shorter than a header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(io, &file->pixels, header, sizeof header, 0, err));
    memcpy(&file->count, header + 8, 8);
    memcpy(sizes, header + 16, sizeof sizes);
    file->height = sizes[0], file->width = sizes[1], file->channels = sizes[2], file->classes = sizes[3];
    DSC_TRY(check_packed(file, header, bytes, err));
    file->label_start = DSC_PICTURE_HEADER_BYTES;
    file->label_stride = file->label_bytes = 4;
    file->pixel_start = DSC_PICTURE_HEADER_BYTES + 4 * file->count;
    file->pixel_stride = file->height * file->width * file->channels;
    return DSC_OK;
}

/* ---- IDX --------------------------------------------------------------------------------------------------------- */

/* The last `from` of a path's last component becomes `to`, of as many bytes. */
static bool rename_part(char *path, const char *from, const char *to)
{
    const char *slash = strrchr(path, '/');
    char *found = NULL, *at = path + (slash != NULL ? slash + 1 - path : 0);
    while ((at = strstr(at, from)) != NULL)
        found = at++;
    if (found != NULL)
        memcpy(found, to, strlen(to));
    return found != NULL;
}

static dsc_status open_idx_labels(const dsc_io *io, dsc_picture_file *file, dsc_error *err)
{
    char path[sizeof file->pixels.path];
    unsigned char header[IDX_LABEL_HEADER];
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s", path_of(file));
    if (!rename_part(path, "images", "labels") || !rename_part(path, "idx3", "idx1"))
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                        "the name of an IDX file of pictures needs \"images\" and \"idx3\", so that the one with "
                        "\"labels\" and \"idx1\" beside it is found, as in train-images-idx3-ubyte");
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &file->labels, err));
    DSC_TRY(dsc_io_size(io, &file->labels, &bytes, err));
    if (bytes < IDX_LABEL_HEADER)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "truncated: %lld bytes is shorter than a header", (long long)bytes);
    DSC_TRY(dsc_io_read(io, &file->labels, header, sizeof header, 0, err));
    if (big_endian(header) != IDX_LABELS || big_endian(header + 4) != file->count ||
        bytes != IDX_LABEL_HEADER + file->count)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "not the labels of %lld pictures: expected an IDX file of bytes in one dimension with as many",
                        (long long)file->count);
    file->label_start = IDX_LABEL_HEADER;
    file->label_stride = file->label_bytes = 1;
    return DSC_OK;
}

static dsc_status open_idx(const dsc_io *io, dsc_picture_file *file, int64_t bytes, dsc_error *err)
{
    unsigned char header[IDX_HEADER];
    if (bytes < IDX_HEADER)
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file), "truncated: %lld bytes is shorter than a header",
                        (long long)bytes);
    DSC_TRY(dsc_io_read(io, &file->pixels, header, sizeof header, 0, err));
    file->count = big_endian(header + 4);
    file->height = big_endian(header + 8);
    file->width = big_endian(header + 12);
    file->channels = 1;
    if (!is_side(file->height) || !is_side(file->width) || file->count < 1 || !fits(file, IDX_HEADER, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                        "%lld bytes are not those of an IDX file with %lld pictures of %lld by %lld (truncated?)",
                        (long long)bytes, (long long)file->count, (long long)file->height, (long long)file->width);
    file->pixel_start = IDX_HEADER;
    file->pixel_stride = file->height * file->width;
    return open_idx_labels(io, file, err);
}

/* ---- CIFAR ------------------------------------------------------------------------------------------------------- */

/* 0: the size is not that of such a file; else bytes before a record's pixels. */
static int64_t cifar_labels(const char *path, int64_t bytes)
{
    const size_t length = strlen(path);
    const bool named = length > 4 && strcmp(path + length - 4, ".bin") == 0;
    for (int64_t labels = 1; labels <= 2 && named && bytes > 0; labels++)
        if (bytes % (labels + CIFAR_PIXELS) == 0)
            return labels;
    return 0;
}

static void set_cifar(dsc_picture_file *file, int64_t labels, int64_t bytes)
{
    file->height = file->width = CIFAR_SIDE;
    file->channels = 3;
    file->planes = true;
    file->pixel_start = labels;
    file->label_start = labels - 1; /* the fine one is the second */
    file->label_bytes = 1;
    file->pixel_stride = file->label_stride = labels + CIFAR_PIXELS;
    file->count = bytes / file->pixel_stride;
}

/* ---- any --------------------------------------------------------------------------------------------------------- */

static dsc_status refuse_kind(const dsc_picture_file *file, const unsigned char *start, dsc_error *err)
{
    const bool jpeg = start[0] == 0xff && start[1] == 0xd8, png = memcmp(start, "\x89PNG", 4) == 0;
    return DSC_FAIL(err, DSC_ERR_INPUT, path_of(file),
                    "%s; pictures are read from packed files (they start with %s), IDX files and CIFAR's *.bin: "
                    "docs/data.md says how to pack pictures",
                    jpeg                                   ? "a JPEG"
                    : png                                  ? "a PNG"
                    : start[0] == 0x1f && start[1] == 0x8b ? "compressed by gzip (gunzip -k FILE)"
                                                           : "not a file of pictures",
                    DSC_PICTURE_MAGIC);
}

static dsc_status open_any(const dsc_io *io, dsc_picture_file *file, dsc_error *err)
{
    unsigned char start[DSC_PICTURE_MAGIC_BYTES] = { 0 };
    int64_t bytes = 0;
    DSC_TRY(dsc_io_size(io, &file->pixels, &bytes, err));
    DSC_TRY(dsc_io_read(io, &file->pixels, start, dsc_min_i64(bytes, sizeof start), 0, err));
    if (memcmp(start, DSC_PICTURE_MAGIC, DSC_PICTURE_MAGIC_BYTES) == 0)
        return open_packed(io, file, bytes, err);
    if (big_endian(start) == IDX_PICTURES)
        return open_idx(io, file, bytes, err);
    const int64_t labels = cifar_labels(path_of(file), bytes);
    if (labels == 0)
        return refuse_kind(file, start, err);
    set_cifar(file, labels, bytes);
    return DSC_OK;
}

dsc_status dsc_picture_file_open(const dsc_io *io, const char *path, dsc_picture_file *out, dsc_error *err)
{
    *out = (dsc_picture_file)DSC_PICTURE_FILE_INIT;
    DSC_TRY(dsc_io_open(io, path, DSC_IO_READ_ONLY, &out->pixels, err));
    const dsc_status status = open_any(io, out, err);
    if (status != DSC_OK)
        dsc_picture_file_close(io, out);
    return status;
}

void dsc_picture_file_close(const dsc_io *io, dsc_picture_file *file)
{
    (void)dsc_io_close(io, &file->pixels, NULL); /* only read: nothing can be lost */
    (void)dsc_io_close(io, &file->labels, NULL);
}

void dsc_picture_file_draw(dsc_shapes_set set, int64_t height, int64_t width, int64_t channels, int64_t classes,
                           dsc_picture_file *out)
{
    *out = (dsc_picture_file)DSC_PICTURE_FILE_INIT;
    out->drawn = set;
    out->count = dsc_shapes_count(set);
    out->height = height, out->width = width, out->channels = channels;
    out->classes = dsc_min_i64(classes, DSC_SHAPES_CLASSES);
    snprintf(out->pixels.path, sizeof out->pixels.path, "%s",
             set == DSC_SHAPES_TEST ? DSC_SHAPES_TEST_NAME : DSC_SHAPES_TRAIN_NAME);
}

static dsc_file *labels_of(dsc_picture_file *file) { return file->labels.fd >= 0 ? &file->labels : &file->pixels; }

static dsc_status check_label(dsc_picture_file *file, int64_t i, int32_t label, int64_t classes, dsc_error *err)
{
    if (label >= 0 && label < classes)
        return DSC_OK;
    return DSC_FAIL(
        err, DSC_ERR_INPUT, labels_of(file)->path,
        "picture %lld has class %d, and the model has %lld classes: give a model with more (\"id2label\" of "
        "its config.json)",
        (long long)i, (int)label, (long long)classes);
}

/* *highest <- the highest label, all of which are below `classes`. Reads of labels that follow each other are of many
 * at once. */
static dsc_status scan_labels(const dsc_io *io, dsc_picture_file *file, int64_t classes, int64_t *highest,
                              dsc_error *err)
{
    enum { AT_ONCE = 4096 };
    uint8_t bytes[4 * AT_ONCE];
    *highest = -1;
    const int64_t most = file->label_stride == file->label_bytes ? AT_ONCE : 1;
    for (int64_t i = 0; i < file->count; i += most) {
        const int64_t count = dsc_min_i64(most, file->count - i);
        DSC_TRY(dsc_io_read(io, labels_of(file), bytes, count * file->label_bytes,
                            file->label_start + i * file->label_stride, err));
        for (int64_t k = 0; k < count; k++) {
            int32_t label = bytes[k];
            if (file->label_bytes == 4)
                memcpy(&label, bytes + 4 * k, sizeof label);
            DSC_TRY(check_label(file, i + k, label, classes, err));
            *highest = dsc_max_i64(*highest, label);
        }
    }
    return DSC_OK;
}

dsc_status dsc_picture_file_check(const dsc_io *io, dsc_picture_file *file, int64_t classes, dsc_error *err)
{
    int64_t highest = 0;
    return file->drawn != DSC_SHAPES_NONE ? DSC_OK : scan_labels(io, file, classes, &highest, err);
}

dsc_status dsc_picture_file_classes(const dsc_io *io, dsc_picture_file *file, int64_t *classes, dsc_error *err)
{
    *classes = file->classes;
    if (file->classes > 0)
        return DSC_OK;
    DSC_TRY(scan_labels(io, file, INT32_MAX, classes, err));
    ++*classes;
    return DSC_OK;
}

dsc_status dsc_picture_file_read(const dsc_io *io, dsc_picture_file *file, int64_t i, int64_t classes, uint8_t *pixels,
                                 int32_t *label, dsc_error *err)
{
    uint8_t byte = 0;
    DSC_ASSERT(i >= 0 && i < file->count);
    if (file->drawn != DSC_SHAPES_NONE) {
        *label = dsc_shapes_draw(file->drawn, i, file->height, file->width, file->channels, file->classes, pixels);
        return DSC_OK;
    }
    DSC_TRY(dsc_io_read(io, &file->pixels, pixels, file->height * file->width * file->channels,
                        file->pixel_start + i * file->pixel_stride, err));
    DSC_TRY(dsc_io_read(io, labels_of(file), file->label_bytes == 4 ? (void *)label : &byte, file->label_bytes,
                        file->label_start + i * file->label_stride, err));
    if (file->label_bytes == 1)
        *label = byte;
    return check_label(file, i, *label, classes, err);
}
