/* classify_pictures.c - see classify_pictures.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/classify_pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/data/images/list.h"
#include "engine/data/images/preprocessor.h"
#include "engine/data/pictures.h"
#include "engine/generate/infer.h"
#include "tools/dsc/picture_grid.h"
#include "tools/dsc/tool.h"

#define PIXELS_MAX (INT64_C(24) << 20)
enum { TOP_OF_SUMMARY = 5 };

typedef struct run {
    const classify_pictures *o;
    dsc_alloc *alloc;
    dsc_infer *infer;
    dsc_pictures *pictures;
    dsc_picture_norm norm;
    dsc_json *config;  /* the model's */
    const char **name; /* [classes] of the config, else of the data; an entry may be NULL */
    bool own_names;    /* all names are the config's */
    int64_t classes;
    int64_t *order;     /* [classes], the likeliest first */
    float *pixels;      /* of one picture */
    bool loose;         /* classes of pictures are not known */
    picture_cell *cell; /* [PICTURE_GRID_MAX] */
    int64_t cells, count, right, right_of_top;
} run;

dsc_status classify_sees_pictures(const char *model, bool *out, dsc_error *err)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *opened = NULL;
    options.want_weights = false;
    DSC_TRY(dsc_model_open(&opened, model, &options, err));
    *out = dsc_model_sees_pictures(opened);
    dsc_model_close(&opened);
    return DSC_OK;
}

/* ---- what is opened ---------------------------------------------------------------------------------------------- */

static dsc_status read_names(run *r, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    const char *text = dsc_infer_model(r->infer)->config_json;
    DSC_TRY(dsc_alloc_zeroed(r->alloc, DSC_TAG_CONTROL, r->classes, sizeof *r->name, &r->name, err));
    if (text == NULL)
        return DSC_OK;
    DSC_TRY(
        dsc_json_open(r->alloc, "config.json", text, (int64_t)strlen(text), DSC_JSON_STRICT, &limits, &r->config, err));
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(dsc_json_root(r->config), "id2label");
    r->own_names = cJSON_IsObject(list);
    for (int64_t i = 0; i < r->classes; i++) {
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)i);
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(list, number);
        r->name[i] = cJSON_IsString(item) ? item->valuestring : NULL;
        r->own_names = r->own_names && r->name[i] != NULL;
    }
    return DSC_OK;
}

/* All paths have classes, or none has. */
static dsc_status find_kind(run *r, dsc_error *err)
{
    for (int32_t i = 0; i < r->o->path_count; i++) {
        const bool loose = dsc_image_list_is_loose(r->o->paths[i]);
        if (i > 0 && loose != r->loose)
            return DSC_FAIL(err, DSC_ERR_INPUT, r->o->paths[i],
                            "pictures with known classes and pictures without any; give one kind at a time");
        r->loose = loose;
    }
    return DSC_OK;
}

static dsc_status open_pictures(run *r, dsc_error *err)
{
    const int64_t *dim = dsc_infer_model(r->infer)->batch[0].dim;
    const bool folder = dsc_io_kind(r->o->model) == DSC_PATH_DIR;
    dsc_image_preprocessor from;
    dsc_picture_options options = { .alloc = r->alloc,
                                    .paths = r->o->paths,
                                    .path_count = r->o->path_count,
                                    .planes = dim[0],
                                    .height = dim[1],
                                    .width = dim[2],
                                    .classes = r->classes,
                                    .loose = r->loose };
    dsc_picture_changes *changes = &options.changes;
    *changes = (dsc_picture_changes) { .enabled = dim[0] == 1 || dim[0] == 3,
                                       .readers = 1,
                                       .pixels_max = PIXELS_MAX,
                                       .class_names = r->own_names ? (const char *const *)r->name : NULL };
    changes->transform.width = (int32_t)dim[2], changes->transform.height = (int32_t)dim[1];
    if (dim[0] > DSC_PICTURE_CHANNELS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, r->o->model, "pictures of %lld planes; at most %d", (long long)dim[0],
                        DSC_PICTURE_CHANNELS_MAX);
    DSC_TRY(dsc_image_preprocessor_open(NULL, r->alloc, folder ? r->o->model : NULL, &from, err));
    dsc_status status = dsc_picture_norm_load(&from, dim[0], &options.norm, err);
    if (status == DSC_OK)
        status = dsc_image_preprocessor_sizes(&from, &changes->transform, err);
    dsc_image_preprocessor_close(&from);
    DSC_TRY(status);
    r->norm = options.norm;
    return dsc_pictures_open(&options, &r->pictures, err);
}

static dsc_status open_all(run *r, dsc_error *err)
{
    const classify_pictures *o = r->o;
    const dsc_infer_options options = { .alloc = r->alloc,
                                        .model = o->model,
                                        .device = o->device,
                                        .dtype = o->bf16 ? DSC_BF16 : DSC_F32,
                                        .threads = (int32_t)o->threads,
                                        .labels = true,
                                        .pictures = true };
    DSC_TRY(dsc_infer_open(&options, &r->infer, err));
    DSC_TRY(dsc_infer_start(r->infer, 1, NULL, err));
    r->classes = dsc_infer_labels(r->infer)->count;
    const int64_t *dim = dsc_infer_model(r->infer)->batch[0].dim;
    DSC_TRY(read_names(r, err));
    DSC_TRY(find_kind(r, err));
    DSC_TRY(open_pictures(r, err));
    DSC_TRY(dsc_alloc_zeroed(r->alloc, DSC_TAG_CONTROL, r->classes, sizeof *r->order, &r->order, err));
    DSC_TRY(dsc_alloc_zeroed(r->alloc, DSC_TAG_CONTROL, dim[0] * dim[1] * dim[2], sizeof *r->pixels, &r->pixels, err));
    if (o->grid == NULL && o->show == 0)
        return DSC_OK;
    return dsc_alloc_zeroed(r->alloc, DSC_TAG_CONTROL, PICTURE_GRID_MAX, sizeof *r->cell, &r->cell, err);
}

/* ---- a picture --------------------------------------------------------------------------------------------------- */

/* Names of the model, and else those of the data, which a model without names was trained with. */
static const char *name_of(const run *r, int64_t c, char number[32])
{
    int64_t count = 0;
    const char *const *names = dsc_pictures_class_names(r->pictures, &count);
    snprintf(number, 32, "%lld", (long long)c);
    return r->name[c] != NULL ? r->name[c] : names != NULL && c < count ? names[c] : number;
}

/* order[0 .. most-1] <- the likeliest classes; of equal ones the lower number first. */
static void find_best(const run *r, const float *scores, int64_t most)
{
    for (int64_t k = 0; k < most; k++) {
        int64_t best = -1;
        for (int64_t c = 0; c < r->classes; c++) {
            bool taken = false;
            for (int64_t before = 0; before < k && !taken; before++)
                taken = r->order[before] == c;
            if (!taken && (best < 0 || scores[c] > scores[best]))
                best = c;
        }
        r->order[k] = best;
    }
}

static double probability(const run *r, const float *scores, int64_t c)
{
    double sum = 0;
    for (int64_t k = 0; k < r->classes; k++)
        sum += exp((double)scores[k] - (double)scores[c]);
    return 1 / sum;
}

static void print_class(const run *r, const float *scores, int64_t c)
{
    char number[32];
    printf("\"label\":");
    dsc_tool_json_text(name_of(r, c, number));
    printf(",\"class\":%lld,\"probability\":%.6g", (long long)c, probability(r, scores, c));
}

static dsc_status print_line(const run *r, int64_t i, int32_t truth, const float *scores, dsc_error *err)
{
    char path[1200], number[32];
    const int64_t most = dsc_min_i64(r->o->top, r->classes);
    dsc_pictures_name(r->pictures, i, path, sizeof path);
    printf("{\"file\":");
    dsc_tool_json_text(path);
    printf(",");
    print_class(r, scores, r->order[0]);
    if (!r->loose) {
        printf(",\"truth\":");
        dsc_tool_json_text(name_of(r, truth, number));
    }
    printf(",\"top\":[");
    for (int64_t k = 0; k < most; k++) {
        printf(k > 0 ? ",{" : "{");
        print_class(r, scores, r->order[k]);
        printf("}");
    }
    return printf("]}\n") < 0 ? DSC_FAIL(err, DSC_ERR_IO, "stdout", "the line cannot be written") : DSC_OK;
}

/* The picture as the model sees it. */
static void keep_cell(run *r, int32_t truth)
{
    char number[32];
    const int64_t *dim = dsc_infer_model(r->infer)->batch[0].dim, area = dim[1] * dim[2];
    picture_cell *cell = &r->cell[r->cells++];
    for (int64_t c = 0; c < dim[0]; c++)
        for (int64_t i = c * area; i < (c + 1) * area; i++)
            r->pixels[i] = (float)((r->pixels[i] * r->norm.std[c] + r->norm.mean[c]) / r->norm.rescale);
    picture_cell_fill(cell, r->pixels, dim[0], dim[1], dim[2]);
    snprintf(cell->said, sizeof cell->said, "%.*s", PICTURE_GRID_WORD - 1, name_of(r, r->order[0], number));
    if (!r->loose)
        snprintf(cell->truth, sizeof cell->truth, "%.*s", PICTURE_GRID_WORD - 1, name_of(r, truth, number));
}

static dsc_status classify_one(run *r, const dsc_data_source *source, int64_t i, dsc_error *err)
{
    const float *scores = NULL;
    const int64_t cells = dsc_max_i64(r->o->show, r->o->grid != NULL ? PICTURE_GRID_MAX : 0);
    int32_t truth = 0;
    void *const batch[] = { r->pixels, &truth };
    DSC_TRY(source->fill(source->user, i, 1, batch, err));
    DSC_TRY(dsc_infer_picture(r->infer, r->pixels, &scores, err));
    for (int64_t c = 0; c < r->classes; c++)
        if (!isfinite(scores[c]))
            return DSC_FAIL(err, DSC_ERR_INPUT, r->o->model,
                            "the scores of picture %lld are not finite; are the weights whole?", (long long)i);
    find_best(r, scores, dsc_min_i64(r->classes, dsc_max_i64(r->o->top, TOP_OF_SUMMARY)));
    r->count++;
    r->right += r->order[0] == truth;
    for (int64_t k = 0; k < TOP_OF_SUMMARY && k < r->classes; k++)
        r->right_of_top += r->order[k] == truth;
    if (r->o->show == 0)
        DSC_TRY(print_line(r, i, truth, scores, err));
    if (r->cells < cells)
        keep_cell(r, truth);
    return DSC_OK;
}

static dsc_status classify_all(run *r, dsc_error *err)
{
    const dsc_data_source source = dsc_pictures_as_source(r->pictures);
    for (int64_t i = 0; i < source.sample_count; i++)
        DSC_TRY(classify_one(r, &source, i, err));
    if (r->o->show > 0)
        picture_grid_print(r->cell, dsc_min_i64(r->o->show, r->cells));
    if (fflush(stdout) == 0 && !r->loose) {
        fprintf(stderr, "accuracy %.4f, %lld of %lld pictures", (double)r->right / (double)r->count,
                (long long)r->right, (long long)r->count);
        if (r->classes > TOP_OF_SUMMARY)
            fprintf(stderr, "; top-5 accuracy %.4f", (double)r->right_of_top / (double)r->count);
        fprintf(stderr, "\n");
    }
    if (r->o->grid != NULL && r->cells > 0)
        DSC_TRY(picture_grid_save(r->o->grid, r->cell, r->cells, err));
    return DSC_OK;
}

dsc_status classify_pictures_run(const classify_pictures *options, dsc_error *err)
{
    run r = { .o = options };
    DSC_TRY(dsc_alloc_open(&r.alloc, err));
    dsc_status status = open_all(&r, err);
    if (status == DSC_OK)
        status = classify_all(&r, err);
    dsc_pictures_close(&r.pictures);
    dsc_infer_close(&r.infer);
    dsc_json_close(&r.config);
    void *const memory[] = { (void *)r.name, r.order, r.pixels, r.cell };
    for (size_t i = 0; i < DSC_COUNT(memory); i++)
        dsc_alloc_free(r.alloc, memory[i]);
    dsc_alloc_close(&r.alloc);
    return status;
}
