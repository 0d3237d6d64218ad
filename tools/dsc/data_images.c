/* data_images.c - `dsc data images IN... -o OUT.pictures`: pictures are decoded and resized once, to the packed format
 * that train reads, with the names of classes in OUT.pictures.classes. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/data_images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/data/files.h"
#include "engine/data/images/class_names.h"
#include "engine/data/pictures.h"

enum { INPUTS_MAX = 4096, TOGETHER_MAX = 64, PLANES = 3, BATCH_BYTES_MAX = 1 << 26 };

typedef struct settings {
    dsc_flag_list paths;
    const char *out, *classes, *interpolation;
    int64_t crop, resize, threads, pixels_max;
    bool skip_broken;
} settings;

#define AT(field) offsetof(settings, field)
static const char *const filters[] = { "bilinear", "bicubic", NULL }; /* in the order of dsc_resample_filter */
static const dsc_flag rows[] = {
    { "--out", "-o", "OUT.pictures", DSC_FLAG_TEXT, AT(out), .required = true, .help = "packed file to write" },
    { "--crop", NULL, "N", DSC_FLAG_INTEGER, AT(crop), .min = 1, .max = DSC_PICTURE_SIDE_MAX,
      .help = "height and width of the packed pictures: the centre; default 256" },
    { "--resize", NULL, "N", DSC_FLAG_INTEGER, AT(resize), .min = 1, .max = DSC_PICTURE_SIDE_MAX,
      .help = "pixels of the shorter side before that; default: --crop" },
    { "--interpolation", NULL, "NAME", DSC_FLAG_CHOICE, AT(interpolation), .choices = filters,
      .help = "filter of the resize: bilinear or bicubic; default bilinear" },
    { "--classes", NULL, "FILE", DSC_FLAG_TEXT, AT(classes),
      .help = "names of the classes, one a line, in their order; default: the names that are found, sorted" },
    { "--skip-broken", NULL, NULL, DSC_FLAG_BOOL, AT(skip_broken),
      .help = "the next picture takes the place of one that cannot be decoded; default: an error" },
    { "--pixels-max", NULL, "N", DSC_FLAG_INTEGER, AT(pixels_max), .min = 1, .max = 1 << 30,
      .help = "pixels of a picture; default 25165824" },
    { "--threads", NULL, "N", DSC_FLAG_INTEGER, AT(threads), .min = 1, .max = 256,
      .help = "threads that decode; default: one for each core" },
};
static const dsc_positional inputs[] = {
    { "IN",
      "folder of classes, *.csv with path and label, *.tar, a range {A..B} or a pattern of these, or other pictures "
      "that train reads",
      "data", AT(paths), 1, 0 },
};
const dsc_flag_command dsc_data_images_page = {
    .name = "dsc data images",
    .description = "Decodes and resizes pictures once, to a packed file that train reads without decoding.",
    .flags = rows,
    .flag_count = DSC_COUNT(rows),
    .positionals = inputs,
    .positional_count = 1,
};

typedef struct packing {
    const settings *s;
    dsc_alloc *alloc;
    dsc_data_files files;
    dsc_class_names names; /* of --classes */
    dsc_pictures *pictures;
    dsc_file file;
    char temporary[1100];
    int64_t together; /* pictures of a batch */
    float *planes;    /* [together,PLANES,crop,crop] */
    uint8_t *pixels;
    int32_t *labels; /* [count] */
    int64_t count, skipped;
} packing;

static dsc_status read_classes(packing *p, dsc_error *err)
{
    p->names.alloc = p->alloc;
    return p->s->classes != NULL ? dsc_class_names_read(NULL, p->s->classes, &p->names, err) : DSC_OK;
}

static dsc_status open_pictures(packing *p, dsc_error *err)
{
    const settings *s = p->s;
    const int64_t crop = s->crop;
    dsc_picture_options options = { .alloc = p->alloc,
                                    .path_count = p->files.count,
                                    .paths = (const char *const *)p->files.path,
                                    .planes = PLANES,
                                    .height = crop,
                                    .width = crop,
                                    .classes = p->names.count > 0 ? p->names.count : INT32_MAX,
                                    .norm = { .rescale = 1 } };
    options.changes = (dsc_picture_changes) { .enabled = true,
                                              .resize_given = s->resize > 0,
                                              .skip_broken = s->skip_broken,
                                              .readers = (int32_t)s->threads,
                                              .pixels_max = s->pixels_max,
                                              .class_names = p->names.name };
    options.changes.transform = (dsc_image_transform) { .resize = (int32_t)(s->resize > 0 ? s->resize : crop),
                                                        .width = (int32_t)crop,
                                                        .height = (int32_t)crop };
    if (s->interpolation != NULL && strcmp(s->interpolation, filters[DSC_RESAMPLE_BICUBIC]) == 0)
        options.changes.transform.filter = DSC_RESAMPLE_BICUBIC;
    for (int c = 0; c < PLANES; c++) /* values are the pixels */
        options.norm.std[c] = 1;
    if (options.changes.transform.resize < crop)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--resize", "%lld is less than --crop, which is %lld; give as much or more",
                        (long long)s->resize, (long long)crop);
    return dsc_pictures_open(&options, &p->pictures, err);
}

static void interleave(const packing *p, int64_t count)
{
    const int64_t area = p->s->crop * p->s->crop;
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < area; i++)
            for (int64_t c = 0; c < PLANES; c++)
                p->pixels[(k * area + i) * PLANES + c] = (uint8_t)p->planes[(k * PLANES + c) * area + i];
}

static void show_progress(packing *p, int64_t done, int64_t start_ns, int64_t *shown_ns)
{
    char why[600];
    const int64_t broken = dsc_pictures_take_broken(p->pictures, why, sizeof why), now = dsc_clock_ns();
    p->skipped += broken;
    if (broken > 0)
        fprintf(stderr, "dsc: warning: skipped %lld broken picture%s: %s\n", (long long)broken,
                broken == 1 ? "" : "s, the last", why);
    if (!isatty(STDERR_FILENO) || now - *shown_ns < 200000000)
        return;
    *shown_ns = now;
    fprintf(stderr, "\r\033[K%3.0f%%  %lld pictures  %.0f/s", 100.0 * (double)done / (double)p->count, (long long)done,
            (double)done / ((double)(now - start_ns) * 1e-9));
    fflush(stderr);
}

static dsc_status write_pixels(packing *p, dsc_error *err)
{
    const dsc_data_source source = dsc_pictures_as_source(p->pictures);
    const int64_t each = PLANES * p->s->crop * p->s->crop, start = DSC_PICTURE_HEADER_BYTES + 4 * p->count;
    int64_t start_ns = dsc_clock_ns(), shown_ns = start_ns;
    for (int64_t i = 0; i < p->count; i += p->together) {
        const int64_t count = dsc_min_i64(p->together, p->count - i);
        void *const batch[] = { p->planes, p->labels + i };
        DSC_TRY(source.fill(source.user, i, count, batch, err));
        interleave(p, count);
        DSC_TRY(dsc_io_write(NULL, &p->file, p->pixels, count * each, start + i * each, err));
        show_progress(p, i + count, start_ns, &shown_ns);
    }
    return DSC_OK;
}

static void put_le(uint8_t *at, int64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)((uint64_t)value >> (8 * i));
}

/* Classes are those that have names, or up to the largest number. */
static dsc_status write_head(packing *p, dsc_error *err)
{
    uint8_t header[DSC_PICTURE_HEADER_BYTES] = { 0 };
    int64_t classes = p->names.count;
    if (classes == 0)
        (void)dsc_pictures_class_names(p->pictures, &classes);
    for (int64_t i = 0; i < p->count; i++)
        classes = dsc_max_i64(classes, (int64_t)p->labels[i] + 1);
    memcpy(header, DSC_PICTURE_MAGIC, DSC_PICTURE_MAGIC_BYTES);
    put_le(header + 8, p->count, 8);
    put_le(header + 16, p->s->crop, 4), put_le(header + 20, p->s->crop, 4);
    put_le(header + 24, PLANES, 4), put_le(header + 28, classes, 4);
    DSC_TRY(dsc_io_write(NULL, &p->file, header, sizeof header, 0, err));
    for (int64_t i = 0; i < p->count; i++)
        put_le((uint8_t *)&p->labels[i], p->labels[i], 4);
    return dsc_io_write(NULL, &p->file, p->labels, 4 * p->count, sizeof header, err);
}

static dsc_status write_classes(packing *p, dsc_error *err)
{
    char path[1100], *text = NULL;
    int64_t count = 0, bytes = 0;
    const char *const *names = dsc_pictures_class_names(p->pictures, &count);
    if (p->names.count > 0)
        names = p->names.name, count = p->names.count;
    for (int64_t i = 0; i < count; i++)
        bytes += (int64_t)strlen(names[i]) + 1;
    if (names == NULL)
        return DSC_OK;
    snprintf(path, sizeof path, "%s.classes", p->s->out);
    DSC_TRY(dsc_alloc_zeroed(p->alloc, DSC_TAG_CONTROL, bytes + 1, 1, &text, err));
    for (int64_t i = 0, at = 0; i < count; i++)
        at += snprintf(text + at, (size_t)(bytes + 1 - at), "%s\n", names[i]);
    const dsc_status status = dsc_io_write_all_atomic(NULL, path, text, bytes, err);
    dsc_alloc_free(p->alloc, text);
    return status;
}

static dsc_status write_file(packing *p, dsc_error *err)
{
    const int64_t each = PLANES * p->s->crop * p->s->crop;
    p->together = dsc_max_i64(1, dsc_min_i64(TOGETHER_MAX, BATCH_BYTES_MAX / each));
    const int64_t elements = p->together * each;
    const dsc_data_source source = dsc_pictures_as_source(p->pictures);
    p->count = source.sample_count;
    DSC_TRY(dsc_alloc_zeroed(p->alloc, DSC_TAG_DATA, elements, sizeof *p->planes, &p->planes, err));
    DSC_TRY(dsc_alloc_zeroed(p->alloc, DSC_TAG_DATA, elements, 1, &p->pixels, err));
    DSC_TRY(dsc_alloc_zeroed(p->alloc, DSC_TAG_DATA, p->count, sizeof *p->labels, &p->labels, err));
    DSC_TRY(dsc_io_open(NULL, p->temporary, DSC_IO_CREATE, &p->file, err));
    DSC_TRY(write_pixels(p, err));
    DSC_TRY(write_head(p, err));
    DSC_TRY(dsc_io_fsync(NULL, &p->file, err));
    DSC_TRY(dsc_io_close(NULL, &p->file, err));
    DSC_TRY(dsc_io_rename(NULL, p->temporary, p->s->out, err));
    return write_classes(p, err);
}

static dsc_status pack(packing *p, dsc_error *err)
{
    const settings *s = p->s;
    if (strlen(s->out) > 1000)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--out", "the path has more than 1000 bytes");
    snprintf(p->temporary, sizeof p->temporary, "%s.tmp", s->out);
    for (int32_t i = 0; i < s->paths.count; i++)
        DSC_TRY(dsc_data_files_add(&p->files, s->paths.text[i], i, err));
    DSC_TRY(dsc_io_refuse_input(s->out, (const char *const *)p->files.path, p->files.count, err));
    DSC_TRY(dsc_io_refuse_input(p->temporary, (const char *const *)p->files.path, p->files.count, err));
    DSC_TRY(read_classes(p, err));
    DSC_TRY(open_pictures(p, err));
    const dsc_status status = write_file(p, err);
    if (status != DSC_OK && p->file.fd >= 0) {
        (void)dsc_io_close(NULL, &p->file, NULL);
        (void)!dsc_io_unlink(NULL, p->temporary, NULL);
    }
    return status;
}

static void close_packing(packing *p)
{
    dsc_pictures_close(&p->pictures);
    dsc_data_files_free(&p->files);
    dsc_class_names_free(&p->names);
    dsc_alloc_free(p->alloc, p->planes);
    dsc_alloc_free(p->alloc, p->pixels);
    dsc_alloc_free(p->alloc, p->labels);
    dsc_alloc_close(&p->alloc);
}

int dsc_data_images(int argc, char **argv)
{
    static const char *paths[INPUTS_MAX]; /* too large for a stack */
    settings s = { .paths = { paths, 0, INPUTS_MAX },
                   .crop = 256,
                   .threads = dsc_max_i64(1, dsc_min_i64(256, sysconf(_SC_NPROCESSORS_ONLN))),
                   .pixels_max = DSC_IMAGE_PIXELS_MAX };
    packing p = { .s = &s, .file = DSC_FILE_INIT };
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&dsc_data_images_page, argc, argv, &s);
    if (code >= 0)
        return code;
    const int64_t start = dsc_clock_ns();
    dsc_status status = dsc_alloc_open(&p.alloc, &err);
    p.files.alloc = p.alloc;
    if (status == DSC_OK)
        status = pack(&p, &err);
    const int64_t count = p.count, skipped = p.skipped;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    close_packing(&p);
    if (status != DSC_OK)
        return dsc_tool_fail(&err);
    const double seconds = (double)(dsc_clock_ns() - start) * 1e-9;
    printf("%s: %lld pictures of %lld by %lld, %lld broken ones replaced, in %.1f s (%.0f pictures/s)\n", s.out,
           (long long)count, (long long)s.crop, (long long)s.crop, (long long)skipped, seconds,
           (double)count / seconds);
    return dsc_tool_end();
}
