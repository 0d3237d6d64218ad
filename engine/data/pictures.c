/* pictures.c - see pictures.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/pictures.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/rng.h"
#include "engine/data/images/class_names.h"
#include "engine/data/images/image_reader.h"
#include "engine/data/images/workers.h"

enum { SKIPPED_TOGETHER_MAX = 100 };

/* Pictures that were skipped. */
typedef struct picture_news {
    pthread_mutex_t mutex;
    int64_t count;
    char why[512];
} picture_news;

struct dsc_pictures {
    dsc_picture_options options;
    dsc_picture_file *file; /* [options.path_count] */
    int64_t *first;         /* [options.path_count] a file's first sample */
    int64_t count;
    uint8_t *pixels; /* one picture */
    bool encoded, changes; /* samples are those of the list; they have a transform */
    dsc_image_list list;
    const char **class_name;  /* [list.label_count] */
    dsc_class_names names;    /* beside files */
    int64_t drawn_classes;    /* 0: not all files are drawn */
    dsc_image_reader *reader; /* [options.changes.readers] */
    dsc_workers *workers;
    int64_t noted;        /* bytes of the readers in the plan */
    int64_t first_sample; /* of the batch that is filled */
    void *const *batch;
    picture_news news;
    float value[DSC_PICTURE_CHANNELS_MAX][256];
};

bool dsc_model_sees_pictures(const dsc_model *model)
{
    const dsc_batch_spec *spec = &model->batch[0];
    return model->batch_count == 2 && strcmp(spec->name, DSC_BATCH_PIXELS) == 0 && spec->dtype == DSC_F32 &&
           spec->dim_count == 3 && strcmp(model->batch[1].name, DSC_BATCH_TARGETS) == 0;
}

/* ---- preprocessor_config.json ------------------------------------------------------------------------------------ */

static bool is_off(const cJSON *root, const char *key)
{
    return cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(root, key));
}

/* A number for all planes, or one for each. */
static dsc_status read_planes(const cJSON *root, const char *path, const char *key, int64_t planes, double *out,
                              dsc_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
    const bool list = cJSON_IsArray(item);
    if (item == NULL || cJSON_IsNull(item))
        return DSC_OK;
    for (int64_t i = 0; i < planes; i++) {
        const cJSON *number = list ? cJSON_GetArrayItem(item, (int)i) : item;
        if (!cJSON_IsNumber(number) || (list && cJSON_GetArraySize(item) != planes) ||
            !(number->valuedouble > -1e6 && number->valuedouble < 1e6))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"%s\" must have a number for each of the %lld channels", key,
                            (long long)planes);
        out[i] = number->valuedouble;
    }
    return DSC_OK;
}

static dsc_status take_norm(const cJSON *root, const char *path, int64_t planes, dsc_picture_norm *out, dsc_error *err)
{
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(root, "rescale_factor");
    if (scale != NULL && !cJSON_IsNull(scale)) {
        if (!cJSON_IsNumber(scale) || !(scale->valuedouble > 0 && scale->valuedouble <= 1e6))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"rescale_factor\" must be a number above 0");
        out->rescale = scale->valuedouble;
    }
    if (is_off(root, "do_rescale"))
        out->rescale = 1;
    DSC_TRY(read_planes(root, path, "image_mean", planes, out->mean, err));
    DSC_TRY(read_planes(root, path, "image_std", planes, out->std, err));
    for (int64_t i = 0; i < planes; i++) {
        if (is_off(root, "do_normalize"))
            out->mean[i] = 0, out->std[i] = 1;
        if (!(out->std[i] >= 1e-6))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"image_std\" must be 1e-6 or more");
    }
    return DSC_OK;
}

/* "mean" and "std" of pixels from 0 to 1 in "pretrained_cfg", as timm has them. */
static dsc_status take_timm(const cJSON *root, const char *path, int64_t planes, dsc_picture_norm *out, dsc_error *err)
{
    const cJSON *trained = cJSON_GetObjectItemCaseSensitive(root, "pretrained_cfg");
    DSC_TRY(read_planes(trained, path, "mean", planes, out->mean, err));
    DSC_TRY(read_planes(trained, path, "std", planes, out->std, err));
    for (int64_t i = 0; i < planes; i++)
        if (!(out->std[i] >= 1e-6))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"std\" in \"pretrained_cfg\" must be 1e-6 or more");
    return DSC_OK;
}

dsc_status dsc_picture_norm_load(const dsc_image_preprocessor *from, int64_t planes, dsc_picture_norm *out,
                                 dsc_error *err)
{
    DSC_ASSERT(planes <= DSC_PICTURE_CHANNELS_MAX);
    *out = (dsc_picture_norm) { .rescale = 1.0 / 255 };
    for (int64_t i = 0; i < planes; i++)
        out->mean[i] = out->std[i] = 0.5;
    if (from->json == NULL)
        return DSC_OK;
    return from->is_timm ? take_timm(dsc_json_root(from->json), from->path, planes, out, err)
                         : take_norm(dsc_json_root(from->json), from->path, planes, out, err);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static dsc_status check_file(const dsc_pictures *p, const dsc_picture_file *file, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    const bool suits = file->channels == o->planes || file->channels == 1;
    const bool sized = file->height == o->height && file->width == o->width;
    if (p->changes && file->channels != 1 && file->channels != DSC_IMAGE_CHANNELS)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->pixels.path,
                        "pictures of %lld channels; those that dsc.images changes have 1 or 3",
                        (long long)file->channels);
    if ((sized || p->changes) && suits && file->classes <= o->classes)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, file->pixels.path,
                    "pictures of %lld by %lld with %lld channels and %lld classes; the model takes %lld by %lld with "
                    "%lld and has %lld: resize the pictures, or give a model of their size",
                    (long long)file->height, (long long)file->width, (long long)file->channels,
                    (long long)file->classes, (long long)o->height, (long long)o->width, (long long)o->planes,
                    (long long)o->classes);
}

/* Names beside a packed file are those of the other files, and of the model where it has some. */
static dsc_status read_names(dsc_pictures *p, const dsc_picture_file *file, const char *path, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    char beside[1200];
    dsc_class_names found = { .alloc = o->alloc };
    snprintf(beside, sizeof beside, "%.1100s.classes", path);
    if (dsc_io_kind(beside) != DSC_PATH_FILE)
        return DSC_OK;
    dsc_status status = dsc_class_names_read(o->io, beside, &found, err);
    if (status == DSC_OK && (found.count > o->classes || (file->classes > 0 && found.count != file->classes)))
        status = DSC_FAIL(err, DSC_ERR_INPUT, beside, "%lld names; the file has %lld classes, and the model %lld",
                          (long long)found.count, (long long)file->classes, (long long)o->classes);
    if (status == DSC_OK)
        status = dsc_class_names_compare(&found, o->changes.class_names, o->classes, beside, err);
    if (status == DSC_OK && p->names.count > 0)
        status = dsc_class_names_compare(&found, p->names.name, p->names.count, beside, err);
    if (status != DSC_OK || p->names.count > 0)
        dsc_class_names_free(&found);
    else
        p->names = found;
    return status;
}

static dsc_status open_files(dsc_pictures *p, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    int64_t drawn = 0;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *p->file, &p->file, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *p->first, &p->first, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->height * o->width * o->planes, 1, &p->pixels, err));
    for (int64_t i = 0; i < o->path_count; i++)
        p->file[i] = (dsc_picture_file)DSC_PICTURE_FILE_INIT;
    p->changes = o->changes.enabled;
    for (int64_t i = 0; i < o->path_count; i++) {
        const dsc_shapes_set set = dsc_shapes_find(o->paths[i]);
        if (set != DSC_SHAPES_NONE)
            dsc_picture_file_draw(set, o->height, o->width, o->planes, o->classes, &p->file[i]);
        else
            DSC_TRY(dsc_picture_file_open(o->io, o->paths[i], &p->file[i], err));
        drawn += set != DSC_SHAPES_NONE;
        DSC_TRY(check_file(p, &p->file[i], err));
        DSC_TRY(dsc_picture_file_check(o->io, &p->file[i], o->classes, err));
        if (set == DSC_SHAPES_NONE)
            DSC_TRY(read_names(p, &p->file[i], o->paths[i], err));
        p->first[i] = p->count;
        p->count += p->file[i].count;
    }
    p->drawn_classes = drawn == o->path_count ? dsc_min_i64(o->classes, DSC_SHAPES_CLASSES) : 0;
    return DSC_OK;
}

static dsc_status name_classes(dsc_pictures *p, dsc_error *err)
{
    if (p->list.labels != DSC_IMAGE_LABELS_NAMES)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(p->options.alloc, DSC_TAG_CONTROL, p->list.label_count, sizeof *p->class_name,
                             &p->class_name, err));
    for (int64_t i = 0; i < p->list.label_count; i++)
        p->class_name[i] = dsc_image_list_class(&p->list, i);
    return DSC_OK;
}

static dsc_status open_list(dsc_pictures *p, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    p->encoded = p->changes = true;
    p->list = (dsc_image_list) { .alloc = o->alloc, .io = o->io };
    for (int64_t i = 0; i < o->path_count; i++) {
        if (o->loose) {
            DSC_TRY(dsc_image_list_add_loose(&p->list, o->paths[i], err));
            continue;
        }
        if (!dsc_image_list_is(o->paths[i]))
            return DSC_FAIL(err, DSC_ERR_INPUT, o->paths[i],
                            "not a folder, *.csv or *.tar as the other data; expected encoded pictures alone, or none");
        DSC_TRY(dsc_image_list_add(&p->list, o->paths[i], err));
    }
    DSC_TRY(dsc_image_list_number(&p->list, o->changes.class_names, o->classes, err));
    p->count = p->list.count;
    return name_classes(p, err);
}

static dsc_status run_part(void *user, int32_t thread, int64_t part, dsc_error *err);

/* All readers may have their largest picture at once. */
static int64_t reader_bytes(const dsc_pictures *p)
{
    const dsc_picture_options *o = &p->options;
    int64_t most = 0;
    if (p->encoded)
        return o->changes.readers * dsc_image_reader_encoded_bytes(o->changes.pixels_max);
    for (int64_t i = 0; i < o->path_count; i++) {
        const int64_t pixels = p->file[i].height * p->file[i].width;
        most =
            dsc_max_i64(most, dsc_image_reader_file_bytes(pixels * p->file[i].channels, pixels, o->height * o->width));
    }
    return o->changes.readers * most;
}

static dsc_status open_readers(dsc_pictures *p, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    const int32_t readers = o->changes.readers;
    DSC_ASSERT(readers >= 1);
    if (o->planes != 1 && o->planes != DSC_IMAGE_CHANNELS)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "data",
                        "the model sees %lld planes; encoded or changed pictures are for models of 1 or 3",
                        (long long)o->planes);
    DSC_TRY(dsc_alloc_note(o->alloc, DSC_TAG_LIBRARY, DSC_TIER_HOST, reader_bytes(p), err));
    p->noted = reader_bytes(p);
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, readers, sizeof *p->reader, &p->reader, err));
    for (int32_t i = 0; i < readers; i++)
        DSC_TRY(dsc_image_reader_open(o->changes.pixels_max, &p->reader[i], err));
    return dsc_workers_open(readers, run_part, p, &p->workers, err);
}

/* Pictures are read in any order, which a compressed stream does not allow. */
static dsc_status refuse_compressed(const char *path, dsc_error *err)
{
    static const char *const endings[][2] = { { ".tar.gz", "gzip -d" },
                                              { ".tgz", "gzip -d" },
                                              { ".tar.zst", "zstd -d" },
                                              { ".tar.bz2", "bzip2 -d" },
                                              { ".tar.xz", "xz -d" } };
    const size_t bytes = strlen(path);
    for (size_t i = 0; i < DSC_COUNT(endings); i++) {
        const size_t end = strlen(endings[i][0]);
        if (bytes > end && strcasecmp(path + bytes - end, endings[i][0]) == 0)
            return DSC_FAIL(
                err, DSC_ERR_UNSUPPORTED, path,
                "a compressed shard, and pictures are read in any order; decompress it with %s: pictures in "
                "it are compressed already",
                endings[i][1]);
    }
    return DSC_OK;
}

static dsc_status open_all(dsc_pictures *p, dsc_error *err)
{
    bool encoded = p->options.loose;
    for (int64_t i = 0; i < p->options.path_count; i++)
        DSC_TRY(refuse_compressed(p->options.paths[i], err));
    for (int64_t i = 0; i < p->options.path_count; i++)
        encoded = encoded || dsc_image_list_is(p->options.paths[i]);
    if (!encoded && p->options.path_count > DSC_PICTURE_FILES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data", "%lld files of pictures; expected 1 to %d",
                        (long long)p->options.path_count, DSC_PICTURE_FILES_MAX);
    if (encoded)
        DSC_TRY(open_list(p, err));
    else
        DSC_TRY(open_files(p, err));
    return p->changes ? open_readers(p, err) : DSC_OK;
}

dsc_status dsc_pictures_open(const dsc_picture_options *options, dsc_pictures **out, dsc_error *err)
{
    dsc_pictures *p = NULL;
    *out = NULL;
    DSC_ASSERT(options->planes >= 1 && options->planes <= DSC_PICTURE_CHANNELS_MAX);
    if (options->path_count < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data", "no files of pictures; expected 1 or more");
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *p, &p, err));
    p->options = *options;
    pthread_mutex_init(&p->news.mutex, NULL);
    const dsc_picture_norm *norm = &options->norm;
    for (int64_t plane = 0; plane < options->planes; plane++)
        for (int v = 0; v < 256; v++)
            p->value[plane][v] = (float)((v * norm->rescale - norm->mean[plane]) / norm->std[plane]);
    const dsc_status status = open_all(p, err);
    p->options.paths = NULL;
    p->options.changes.class_names = NULL;
    if (status != DSC_OK)
        dsc_pictures_close(&p);
    *out = p;
    return status;
}

void dsc_pictures_close(dsc_pictures **pictures)
{
    dsc_pictures *p = *pictures;
    *pictures = NULL;
    if (p == NULL)
        return;
    dsc_workers_close(&p->workers);
    for (int32_t i = 0; p->reader != NULL && i < p->options.changes.readers; i++)
        dsc_image_reader_close(&p->reader[i]);
    if (p->noted > 0)
        dsc_alloc_unnote(p->options.alloc, DSC_TAG_LIBRARY, DSC_TIER_HOST, p->noted);
    dsc_alloc_free(p->options.alloc, p->reader);
    dsc_alloc_free(p->options.alloc, p->class_name);
    dsc_class_names_free(&p->names);
    if (p->encoded)
        dsc_image_list_free(&p->list);
    pthread_mutex_destroy(&p->news.mutex);
    for (int64_t i = 0; p->file != NULL && i < p->options.path_count; i++)
        dsc_picture_file_close(p->options.io, &p->file[i]);
    dsc_alloc_free(p->options.alloc, p->file);
    dsc_alloc_free(p->options.alloc, p->first);
    dsc_alloc_free(p->options.alloc, p->pixels);
    dsc_alloc_free(p->options.alloc, p);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static int64_t file_of(const dsc_pictures *p, int64_t sample)
{
    int64_t low = 0, high = p->options.path_count - 1;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (p->first[middle] <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void normalise(const dsc_pictures *p, const dsc_picture_file *file, float *out)
{
    const int64_t area = p->options.height * p->options.width, channels = file->channels;
    for (int64_t plane = 0; plane < p->options.planes; plane++) {
        const int64_t channel = channels == 1 ? 0 : plane;
        const uint8_t *from = p->pixels + (file->planes ? channel * area : channel);
        const int64_t step = file->planes ? 1 : channels;
        for (int64_t i = 0; i < area; i++)
            out[plane * area + i] = p->value[plane][from[i * step]];
    }
}

/* ---- changed samples --------------------------------------------------------------------------------------------- */

/* Interleaved RGB as the model's planes. */
static void normalise_image(const dsc_pictures *p, const dsc_image *image, float *out)
{
    const int64_t area = p->options.height * p->options.width;
    DSC_ASSERT(image->width == p->options.width && image->height == p->options.height);
    for (int64_t i = 0; i < area; i++) {
        const uint8_t *from = image->pixels + DSC_IMAGE_CHANNELS * i;
        if (p->options.planes == 1)
            out[i] = p->value[0][(from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 0x8000) >> 16];
        for (int64_t c = 0; p->options.planes == DSC_IMAGE_CHANNELS && c < DSC_IMAGE_CHANNELS; c++)
            out[c * area + i] = p->value[c][from[c]];
    }
}

static dsc_status change_file_picture(dsc_pictures *p, dsc_image_reader *reader, int64_t sample,
                                      const dsc_image_key *key, int32_t *label, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    const int64_t i = file_of(p, sample);
    dsc_picture_file *file = &p->file[i];
    dsc_image_transform t = o->changes.transform;
    if (!o->changes.resize_given && file->width == o->width && file->height == o->height)
        t.resize = t.resize_width = t.resize_height = 0;
    DSC_TRY(dsc_image_reader_room(reader, file->height * file->width * file->channels, err));
    DSC_TRY(dsc_picture_file_read(o->io, file, sample - p->first[i], o->classes, reader->data, label, err));
    return dsc_image_reader_pixels(reader, file->pixels.path, (int32_t)file->width, (int32_t)file->height,
                                   (int32_t)file->channels, file->planes, &t, key, err);
}

static void tell_skipped(dsc_pictures *p, const dsc_error *why)
{
    pthread_mutex_lock(&p->news.mutex);
    p->news.count++;
    snprintf(p->news.why, sizeof p->news.why, "%.250s: %.250s", why->where, why->message);
    pthread_mutex_unlock(&p->news.mutex);
}

/* The picture itself, or the first one behind it that can be decoded. */
static dsc_status change_encoded(dsc_pictures *p, dsc_image_reader *reader, dsc_image_key key, int32_t *label,
                                 dsc_error *err)
{
    const dsc_picture_changes *changes = &p->options.changes;
    dsc_error why = DSC_ERROR_INIT;
    for (int64_t tried = 0; tried < SKIPPED_TOGETHER_MAX && tried < p->count; tried++) {
        const int64_t sample = (int64_t)key.sample;
        why = (dsc_error)DSC_ERROR_INIT;
        const dsc_status status =
            dsc_image_reader_encoded(reader, &p->list, sample, &changes->transform, changes->dct_scaling, &key, &why);
        *label = p->list.item[sample].label;
        if (status == DSC_OK)
            return DSC_OK;
        if (status != DSC_ERR_INPUT)
            return DSC_FAIL(err, status, why.where, "%s", why.message);
        if (!changes->skip_broken)
            return DSC_FAIL(err, status, why.where,
                            "%.380s; dsc.images.broken \"skip\" takes others in place of such files", why.message);
        tell_skipped(p, &why);
        key.sample = (uint64_t)((sample + 1) % p->count);
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, why.where, "%d pictures that follow each other are broken; the last: %.300s",
                    SKIPPED_TOGETHER_MAX, why.message);
}

static int64_t permuted(const dsc_pictures *p, int64_t g, uint32_t *epoch)
{
    const int64_t sample = g % p->count;
    *epoch = (uint32_t)(g / p->count);
    return p->options.shuffle ? (int64_t)dsc_rng_permute(p->options.seed, dsc_rng_stream(DSC_RNG_SHUFFLE, *epoch),
                                                         (uint64_t)p->count, (uint64_t)sample)
                              : sample;
}

static dsc_status run_part(void *user, int32_t thread, int64_t part, dsc_error *err)
{
    dsc_pictures *p = user;
    const dsc_picture_options *o = &p->options;
    dsc_image_reader *reader = &p->reader[thread];
    dsc_image_key key = { .seed = o->seed };
    int32_t *label = (int32_t *)p->batch[1] + part;
    const int64_t sample = permuted(p, p->first_sample + part, &key.epoch);
    key.sample = (uint64_t)sample;
    if (p->encoded)
        DSC_TRY(change_encoded(p, reader, key, label, err));
    else
        DSC_TRY(change_file_picture(p, reader, sample, &key, label, err));
    normalise_image(p, &reader->out, (float *)p->batch[0] + part * o->planes * o->height * o->width);
    return DSC_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static dsc_status read_pictures(dsc_pictures *p, int64_t first_sample, int64_t count, void *const *batch_data,
                                dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    const int64_t elements = o->planes * o->height * o->width;
    uint32_t epoch = 0;
    if (p->changes) {
        p->first_sample = first_sample;
        p->batch = batch_data;
        return dsc_workers_run(p->workers, count, err);
    }
    for (int64_t k = 0; k < count; k++) {
        const int64_t sample = permuted(p, first_sample + k, &epoch);
        const int64_t i = file_of(p, sample);
        DSC_TRY(dsc_picture_file_read(o->io, &p->file[i], sample - p->first[i], o->classes, p->pixels,
                                      (int32_t *)batch_data[1] + k, err));
        normalise(p, &p->file[i], (float *)batch_data[0] + k * elements);
    }
    return DSC_OK;
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_pictures *p = user;
    const dsc_picture_options *o = &p->options;
    dsc_mix mix;
    DSC_TRY(read_pictures(p, first_sample, count, batch_data, err));
    dsc_mix_choose(&o->mix, o->seed, (uint64_t)first_sample, o->height, o->width, &mix);
    dsc_mix_run(&mix, count, o->planes, o->height, o->width, batch_data[0]);
    return DSC_OK;
}

dsc_data_source dsc_pictures_as_source(dsc_pictures *p)
{
    return (dsc_data_source) { .fill = fill, .user = p, .sample_count = p->count };
}

const char *const *dsc_pictures_class_names(const dsc_pictures *p, int64_t *count)
{
    *count = p->class_name != NULL ? p->list.label_count : p->names.count;
    *count = p->drawn_classes > 0 ? p->drawn_classes : *count;
    if (p->drawn_classes > 0)
        return dsc_shapes_names();
    return p->class_name != NULL ? p->class_name : p->names.name;
}

void dsc_pictures_name(const dsc_pictures *p, int64_t i, char *out, size_t out_bytes)
{
    DSC_ASSERT(i >= 0 && i < p->count);
    if (p->encoded) {
        dsc_image_list_path(&p->list, i, out, out_bytes);
        return;
    }
    const int64_t file = file_of(p, i);
    snprintf(out, out_bytes, "%s: %lld", p->file[file].pixels.path, (long long)(i - p->first[file]));
}

int64_t dsc_pictures_left_out(const dsc_pictures *p, const char **first)
{
    *first = p->list.left_out > 0 ? p->list.text + p->list.first_left_out : "";
    return p->list.left_out;
}

int64_t dsc_pictures_take_broken(dsc_pictures *p, char *why, size_t why_bytes)
{
    pthread_mutex_lock(&p->news.mutex);
    const int64_t count = p->news.count;
    snprintf(why, why_bytes, "%s", p->news.why);
    p->news.count = 0;
    pthread_mutex_unlock(&p->news.mutex);
    return count;
}
