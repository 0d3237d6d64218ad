/* pictures.c - see pictures.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/pictures.h"

#include <string.h>

#include "base/formats/json.h"
#include "base/rng.h"

#define CONFIG_BYTES_MAX (1 << 20)

struct dsc_pictures {
    dsc_picture_options options;
    dsc_picture_file *file; /* [options.path_count] */
    int64_t *first;         /* [options.path_count] a file's first sample */
    int64_t count;
    uint8_t *pixels; /* one picture */
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

dsc_status dsc_picture_norm_read(const dsc_io *io, dsc_alloc *alloc, const char *folder, int64_t planes,
                                 dsc_picture_norm *out, bool *found, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    char path[1024], *text = NULL;
    int64_t bytes = 0;
    dsc_json *json = NULL;
    DSC_ASSERT(planes <= DSC_PICTURE_CHANNELS_MAX);
    *out = (dsc_picture_norm) { .rescale = 1.0 / 255 };
    *found = false;
    for (int64_t i = 0; i < planes; i++)
        out->mean[i] = out->std[i] = 0.5;
    if (folder == NULL)
        return DSC_OK;
    DSC_TRY(dsc_path_join(path, sizeof path, folder, "preprocessor_config.json", err));
    if (dsc_io_kind(path) != DSC_PATH_FILE)
        return DSC_OK;
    *found = true;
    DSC_TRY(dsc_io_read_all(io, alloc, path, CONFIG_BYTES_MAX, &text, &bytes, err));
    dsc_status status = dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err);
    if (status == DSC_OK)
        status = take_norm(dsc_json_root(json), path, planes, out, err);
    dsc_json_close(&json);
    dsc_alloc_free(alloc, text);
    return status;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static dsc_status check_file(const dsc_pictures *p, const dsc_picture_file *file, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    const bool suits = file->channels == o->planes || file->channels == 1;
    if (file->height == o->height && file->width == o->width && suits && file->classes <= o->classes)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, file->pixels.path,
                    "pictures of %lld by %lld with %lld channels and %lld classes; the model takes %lld by %lld with "
                    "%lld and has %lld: resize the pictures, or give a model of their size",
                    (long long)file->height, (long long)file->width, (long long)file->channels,
                    (long long)file->classes, (long long)o->height, (long long)o->width, (long long)o->planes,
                    (long long)o->classes);
}

static dsc_status open_files(dsc_pictures *p, dsc_error *err)
{
    const dsc_picture_options *o = &p->options;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *p->file, &p->file, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *p->first, &p->first, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->height * o->width * o->planes, 1, &p->pixels, err));
    for (int64_t i = 0; i < o->path_count; i++)
        p->file[i] = (dsc_picture_file)DSC_PICTURE_FILE_INIT;
    for (int64_t i = 0; i < o->path_count; i++) {
        DSC_TRY(dsc_picture_file_open(o->io, o->paths[i], &p->file[i], err));
        DSC_TRY(check_file(p, &p->file[i], err));
        DSC_TRY(dsc_picture_file_check(o->io, &p->file[i], o->classes, err));
        p->first[i] = p->count;
        p->count += p->file[i].count;
    }
    return DSC_OK;
}

dsc_status dsc_pictures_open(const dsc_picture_options *options, dsc_pictures **out, dsc_error *err)
{
    dsc_pictures *p = NULL;
    *out = NULL;
    DSC_ASSERT(options->planes >= 1 && options->planes <= DSC_PICTURE_CHANNELS_MAX);
    if (options->path_count < 1 || options->path_count > DSC_PICTURE_FILES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data", "%lld files of pictures; expected 1 to %d",
                        (long long)options->path_count, DSC_PICTURE_FILES_MAX);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *p, &p, err));
    p->options = *options;
    const dsc_picture_norm *norm = &options->norm;
    for (int64_t plane = 0; plane < options->planes; plane++)
        for (int v = 0; v < 256; v++)
            p->value[plane][v] = (float)((v * norm->rescale - norm->mean[plane]) / norm->std[plane]);
    const dsc_status status = open_files(p, err);
    p->options.paths = NULL;
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

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_pictures *p = user;
    const dsc_picture_options *o = &p->options;
    const int64_t elements = o->planes * o->height * o->width;
    for (int64_t k = 0; k < count; k++) {
        const int64_t g = first_sample + k;
        const uint64_t stream = dsc_rng_stream(DSC_RNG_SHUFFLE, (uint32_t)(g / p->count));
        int64_t sample = g % p->count;
        if (o->shuffle)
            sample = (int64_t)dsc_rng_permute(o->seed, stream, (uint64_t)p->count, (uint64_t)sample);
        const int64_t i = file_of(p, sample);
        DSC_TRY(dsc_picture_file_read(o->io, &p->file[i], sample - p->first[i], o->classes, p->pixels,
                                      (int32_t *)batch_data[1] + k, err));
        normalise(p, &p->file[i], (float *)batch_data[0] + k * elements);
    }
    return DSC_OK;
}

dsc_data_source dsc_pictures_as_source(dsc_pictures *p)
{
    return (dsc_data_source) { .fill = fill, .user = p, .sample_count = p->count };
}
