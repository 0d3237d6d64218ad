/* preprocessor.c - see preprocessor.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/preprocessor.h"

#include <math.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1 << 20)
#define TIMM_CROP 0.875 /* timm.data.constants.DEFAULT_CROP_PCT */
enum { SIDE_MAX = 1 << 14, PILLOW_BILINEAR = 2, PILLOW_BICUBIC = 3 };

static bool read_side(const cJSON *item, int32_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 1 && item->valuedouble <= SIDE_MAX))
        return false;
    *out = (int32_t)item->valuedouble;
    return *out == item->valuedouble;
}

/* A processor without a central part takes one number as both sides, one with it as the shorter side. */
static dsc_status take_size(const cJSON *size, const char *path, bool crops, double part, dsc_image_transform *out,
                            dsc_error *err)
{
    const cJSON *shorter = cJSON_GetObjectItemCaseSensitive(size, "shortest_edge");
    int32_t side = 0;
    if (size == NULL || cJSON_IsNull(size))
        return DSC_OK;
    if (cJSON_IsObject(size) && shorter == NULL) {
        out->resize = 0;
        if (!read_side(cJSON_GetObjectItemCaseSensitive(size, "height"), &out->resize_height) ||
            !read_side(cJSON_GetObjectItemCaseSensitive(size, "width"), &out->resize_width))
            return DSC_FAIL(err, DSC_ERR_INPUT, path,
                            "\"size\" must have \"height\" and \"width\", or \"shortest_edge\", "
                            "from 1 to %d",
                            SIDE_MAX);
        return DSC_OK;
    }
    if (!read_side(shorter != NULL ? shorter : size, &side))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"size\" must be a number of pixels from 1 to %d", SIDE_MAX);
    if (shorter == NULL && !crops) {
        out->resize = 0;
        out->resize_height = out->resize_width = side;
    } else {
        out->resize = (int32_t)(side / part);
    }
    return DSC_OK;
}

static dsc_status take(const cJSON *root, const char *path, dsc_image_transform *out, dsc_error *err)
{
    const cJSON *filter = cJSON_GetObjectItemCaseSensitive(root, "resample");
    const cJSON *share = cJSON_GetObjectItemCaseSensitive(root, "crop_pct");
    double part = 1;
    if (cJSON_IsNumber(share)) {
        part = share->valuedouble;
        if (!(part >= 0.1 && part <= 1))
            return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"crop_pct\" must be a number from 0.1 to 1");
    }
    if (cJSON_IsNumber(filter)) {
        if (filter->valuedouble != PILLOW_BILINEAR && filter->valuedouble != PILLOW_BICUBIC)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, path,
                            "\"resample\" %g is not built; expected 2 (bilinear) or 3 "
                            "(bicubic)",
                            filter->valuedouble);
        out->filter = filter->valuedouble == PILLOW_BICUBIC ? DSC_RESAMPLE_BICUBIC : DSC_RESAMPLE_BILINEAR;
    }
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(root, "do_resize"))) {
        out->resize = 0;
        return DSC_OK;
    }
    const bool crops = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "do_center_crop"));
    return take_size(cJSON_GetObjectItemCaseSensitive(root, "size"), path, crops, part, out, err);
}

/* ---- timm ---- */

static dsc_status refuse_timm(const char *path, const char *key, const cJSON *item, const char *expected,
                              dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, path, "\"%s\" \"%.60s\" in \"pretrained_cfg\" is not built; expected %s",
                    key, cJSON_IsString(item) ? item->valuestring : "", expected);
}

/* "pretrained_cfg", with timm's values for what is missing, as its create_transform makes evaluations of it. */
static dsc_status take_timm(const cJSON *trained, const char *path, dsc_image_transform *out, dsc_error *err)
{
    const cJSON *share = cJSON_GetObjectItemCaseSensitive(trained, "crop_pct");
    const cJSON *filter = cJSON_GetObjectItemCaseSensitive(trained, "interpolation");
    const cJSON *mode = cJSON_GetObjectItemCaseSensitive(trained, "crop_mode");
    const double part = cJSON_IsNumber(share) ? share->valuedouble : TIMM_CROP;
    const bool squashes = cJSON_IsString(mode) && strcmp(mode->valuestring, "squash") == 0;
    if (!(part >= 0.1 && part <= 1) || (share != NULL && !cJSON_IsNumber(share) && !cJSON_IsNull(share)))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"crop_pct\" in \"pretrained_cfg\" must be a number from 0.1 to 1");
    out->filter = DSC_RESAMPLE_BICUBIC;
    if (cJSON_IsString(filter) && strcmp(filter->valuestring, "bilinear") == 0)
        out->filter = DSC_RESAMPLE_BILINEAR;
    else if (filter != NULL && !cJSON_IsNull(filter) &&
             (!cJSON_IsString(filter) || strcmp(filter->valuestring, "bicubic") != 0))
        return refuse_timm(path, "interpolation", filter, "bilinear or bicubic", err);
    if (mode != NULL && !cJSON_IsNull(mode) && !squashes &&
        (!cJSON_IsString(mode) || strcmp(mode->valuestring, "center") != 0))
        return refuse_timm(path, "crop_mode", mode, "center or squash", err);
    out->resize = (int32_t)(dsc_max_i64(out->width, out->height) / part);
    if (squashes) {
        out->resize = 0;
        out->resize_width = (int32_t)(out->width / part), out->resize_height = (int32_t)(out->height / part);
    }
    return DSC_OK;
}

static const cJSON *trained_of(const dsc_image_preprocessor *p)
{
    return cJSON_GetObjectItemCaseSensitive(dsc_json_root(p->json), "pretrained_cfg");
}

/* ---- the files ---- */

static dsc_status read_file(const dsc_io *io, const char *folder, const char *name, dsc_image_preprocessor *out,
                            dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    int64_t bytes = 0;
    DSC_TRY(dsc_path_join(out->path, sizeof out->path, folder, name, err));
    if (dsc_io_kind(out->path) != DSC_PATH_FILE)
        return DSC_OK;
    DSC_TRY(dsc_io_read_all(io, out->alloc, out->path, CONFIG_BYTES_MAX, &out->text, &bytes, err));
    const dsc_status status =
        dsc_json_open(out->alloc, out->path, out->text, bytes, DSC_JSON_STRICT, &limits, &out->json, err);
    if (status != DSC_OK)
        dsc_image_preprocessor_close(out);
    return status;
}

dsc_status dsc_image_preprocessor_open(const dsc_io *io, dsc_alloc *alloc, const char *folder,
                                       dsc_image_preprocessor *out, dsc_error *err)
{
    *out = (dsc_image_preprocessor) { .alloc = alloc };
    if (folder == NULL)
        return DSC_OK;
    DSC_TRY(read_file(io, folder, "preprocessor_config.json", out, err));
    if (out->json != NULL)
        return DSC_OK;
    DSC_TRY(read_file(io, folder, "config.json", out, err));
    out->is_timm = out->json != NULL && cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(trained_of(out), "mean"));
    if (!out->is_timm)
        dsc_image_preprocessor_close(out);
    return DSC_OK;
}

void dsc_image_preprocessor_close(dsc_image_preprocessor *p)
{
    dsc_json_close(&p->json);
    dsc_alloc_free(p->alloc, p->text);
    p->text = NULL;
}

dsc_status dsc_image_preprocessor_sizes(const dsc_image_preprocessor *p, dsc_image_transform *out, dsc_error *err)
{
    out->resize = (int32_t)rint((out->width > out->height ? out->width : out->height) / 0.875);
    out->resize_width = out->resize_height = 0;
    out->filter = DSC_RESAMPLE_BILINEAR;
    if (p->json == NULL)
        return DSC_OK;
    return p->is_timm ? take_timm(trained_of(p), p->path, out, err) : take(dsc_json_root(p->json), p->path, out, err);
}
