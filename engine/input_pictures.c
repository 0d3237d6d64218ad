/* input_pictures.c - the files of pictures that the config names. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/data/files.h"
#include "engine/data/images/image_reader.h"
#include "engine/data/images/list.h"
#include "engine/data/images/preprocessor.h"
#include "engine/data/pictures.h"
#include "engine/internal.h"
#include "engine/model.h"

enum { READERS_MAX = 16 };

/* ---- sizes of built-in networks ---------------------------------------------------------------------------------- */

/* Sizes of a file of pictures; and its number of classes: ten or a hundred of CIFAR's files, and of IDX those up to
 * the highest label. */
static void size_by_file(const dsc_engine *engine, const char *path, struct dsc_network_options *out)
{
    enum { CIFAR_10 = 3073, CIFAR_100 = 3074 };
    dsc_picture_file file = DSC_PICTURE_FILE_INIT;
    if (dsc_picture_file_open(&engine->io, path, &file, NULL) != DSC_OK)
        return;
    int64_t classes = file.label_stride == CIFAR_10 ? 10 : file.label_stride == CIFAR_100 ? 100 : 0;
    if (classes == 0 && dsc_picture_file_classes(&engine->io, &file, &classes, NULL) != DSC_OK)
        classes = 0;
    if (out->height == 0) {
        out->planes = file.channels;
        out->height = file.height, out->width = file.width;
    }
    out->classes = dsc_max_i64(out->classes, classes);
    dsc_picture_file_close(&engine->io, &file);
}

/* Folders of a folder of classes. The other lists of encoded pictures are read once, when the data is opened. */
static void count_folders(const dsc_engine *engine, const char *path, struct dsc_network_options *out)
{
    char **names = NULL, inner[DSC_CONFIG_TEXT];
    int64_t count = 0, classes = 0;
    if (dsc_io_kind(path) != DSC_PATH_DIR ||
        dsc_io_list(&engine->io, engine->alloc, path, &names, &count, NULL) != DSC_OK)
        return;
    for (int64_t i = 0; i < count; i++)
        classes += names[i][0] != '.' && dsc_path_join(inner, sizeof inner, path, names[i], NULL) == DSC_OK &&
                   dsc_io_kind(inner) == DSC_PATH_DIR;
    dsc_io_list_free(engine->alloc, names, count);
    out->classes = dsc_max_i64(out->classes, classes);
}

static void size_as_drawn(struct dsc_network_options *out)
{
    *out = (struct dsc_network_options) { .planes = DSC_SHAPES_CHANNELS,
                                          .height = DSC_SHAPES_SIDE,
                                          .width = DSC_SHAPES_SIDE,
                                          .classes = DSC_SHAPES_CLASSES };
}

/* Sizes of the first files that the names mean. Whatever cannot be read is reported when the data is opened. */
static void size_by_data(const dsc_engine *engine, const dsc_config_paths *names, struct dsc_network_options *out)
{
    dsc_data_files files = { .alloc = engine->alloc };
    dsc_status status = DSC_OK;
    for (int i = 0; i < names->count && status == DSC_OK; i++)
        status = dsc_data_files_add(&files, dsc_config_path(names, i), i, NULL);
    for (int64_t i = 0; i < files.count && i < DSC_PICTURE_FILES_MAX; i++) {
        if (dsc_shapes_find(files.path[i]) != DSC_SHAPES_NONE)
            size_as_drawn(out);
        else if (dsc_image_list_is(files.path[i]))
            count_folders(engine, files.path[i], out);
        else
            size_by_file(engine, files.path[i], out);
    }
    dsc_data_files_free(&files);
}

bool dsc_engine_draws_pictures(const dsc_engine *engine, const dsc_engine_options *options)
{
    bool drawn = false;
    for (int32_t i = 0; i < options->default_data_count && !drawn; i++)
        drawn = dsc_shapes_find(options->default_data[i]) != DSC_SHAPES_NONE;
    return drawn && options->data.fill == NULL && engine->config.own.data.count == 0;
}

void dsc_engine_size_network(const dsc_engine *engine, struct dsc_network_options *out)
{
    const dsc_ext_config *own = &engine->config.own;
    *out = (struct dsc_network_options) { 0 };
    if (engine->input.drawn)
        size_as_drawn(out);
    else
        size_by_data(engine, own->data.count > 0 ? &own->data : &own->eval_data, out);
    out->size_by_data = own->image_size == 0;
    out->classes_by_data = own->image_classes == 0;
    if (own->image_size > 0)
        out->height = out->width = own->image_size;
    if (own->image_classes > 0)
        out->classes = own->image_classes;
    out->frames = own->image_frames;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Names that a model gives its classes; those of a config without any are LABEL_0, LABEL_1 ... */
typedef struct class_names {
    dsc_json *json;
    const char **name; /* [classes], borrowed from json; NULL: the model has none of its own */
} class_names;

static dsc_status open_model_config(const dsc_engine *engine, dsc_json **out, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    const char *text = engine->model->config_json;
    *out = NULL;
    return text == NULL ? DSC_OK
                        : dsc_json_open(engine->alloc, "config.json", text, (int64_t)strlen(text), DSC_JSON_STRICT,
                                        &limits, out, err);
}

static void close_names(const dsc_engine *engine, class_names *names)
{
    dsc_alloc_free(engine->alloc, names->name);
    dsc_json_close(&names->json);
    names->name = NULL;
}

static dsc_status read_names(const dsc_engine *engine, class_names *out, dsc_error *err)
{
    const int64_t classes = engine->model->vocab_size;
    bool own = false;
    DSC_TRY(open_model_config(engine, &out->json, err));
    const cJSON *list =
        out->json != NULL ? cJSON_GetObjectItemCaseSensitive(dsc_json_root(out->json), "id2label") : NULL;
    if (!cJSON_IsObject(list) || cJSON_GetArraySize(list) != classes)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, classes, sizeof *out->name, &out->name, err));
    for (int64_t i = 0; i < classes; i++) {
        char number[32], usual[40];
        snprintf(number, sizeof number, "%lld", (long long)i);
        snprintf(usual, sizeof usual, "LABEL_%lld", (long long)i);
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(list, number);
        if (!cJSON_IsString(name))
            return DSC_FAIL(err, DSC_ERR_INPUT, "config.json", "\"id2label\" has no name for class %lld", (long long)i);
        out->name[i] = name->valuestring;
        own = own || strcmp(name->valuestring, usual) != 0;
    }
    if (!own) {
        dsc_alloc_free(engine->alloc, out->name);
        out->name = NULL;
    }
    return DSC_OK;
}

/* id2label and label2id <- the classes; those behind the last one keep the names that transformers gives. */
static bool put_names(cJSON *root, const char *const *names, int64_t count, int64_t classes)
{
    cJSON_DeleteItemFromObjectCaseSensitive(root, "id2label");
    cJSON_DeleteItemFromObjectCaseSensitive(root, "label2id");
    cJSON *by_id = cJSON_AddObjectToObject(root, "id2label"), *by_name = cJSON_AddObjectToObject(root, "label2id");
    bool good = by_id != NULL && by_name != NULL;
    for (int64_t i = 0; i < classes && good; i++) {
        char number[32], usual[40];
        snprintf(number, sizeof number, "%lld", (long long)i);
        snprintf(usual, sizeof usual, "LABEL_%lld", (long long)i);
        const char *name = i < count ? names[i] : usual;
        good = cJSON_AddStringToObject(by_id, number, name) != NULL &&
               cJSON_AddNumberToObject(by_name, name, (double)i) != NULL;
    }
    return good;
}

/* Checkpoints of the run say which class is which: the model's config gets the names of the data. */
static dsc_status keep_names(dsc_engine *engine, dsc_error *err)
{
    int64_t count = 0;
    dsc_json *json = NULL;
    const char *const *names = dsc_pictures_class_names(engine->input.pictures, &count);
    if (names == NULL || engine->models.opened == NULL)
        return DSC_OK;
    DSC_TRY(open_model_config(engine, &json, err));
    if (json == NULL)
        return DSC_OK;
    cJSON *root = cJSON_Duplicate(dsc_json_root(json), true);
    char *text = root != NULL && put_names(root, names, count, engine->model->vocab_size) ? cJSON_Print(root) : NULL;
    const dsc_status status = text == NULL ? DSC_FAIL(err, DSC_ERR_NOMEM, "data", "no memory for the names of classes")
                                           : dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, (int64_t)strlen(text) + 1,
                                                              1, &engine->input.class_config, err);
    if (status == DSC_OK) {
        memcpy(engine->input.class_config, text, strlen(text));
        engine->models.opened->config_json = engine->input.class_config;
        if (engine->models.frozen.model != NULL)
            engine->models.frozen.model->config_json = engine->input.class_config;
    }
    cJSON_free(text);
    cJSON_Delete(root);
    dsc_json_close(&json);
    return status;
}

/* ---- transforms -------------------------------------------------------------------------------------------------- */

/* A CPU's cores are the ones that compute. */
static int32_t choose_readers(const dsc_engine *engine)
{
    if (engine->config.own.images.readers > 0)
        return (int32_t)engine->config.own.images.readers;
    return engine->host_visible ? 1 : (int32_t)dsc_max_i64(1, dsc_min_i64(engine->threads, READERS_MAX));
}

static dsc_status take_numbers(const dsc_engine *engine, const char *key, const double *from, int count, double *to,
                               dsc_error *err)
{
    const int64_t planes = engine->model->batch[0].dim[0];
    if (count > 0 && count != planes)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key, "%d numbers, and the model sees %lld channels; give one for each",
                        count, (long long)planes);
    for (int i = 0; i < count; i++)
        to[i] = from[i];
    return DSC_OK;
}

static dsc_status fill_changes(const dsc_engine *engine, const dsc_image_preprocessor *from, bool train,
                               dsc_picture_changes *out, dsc_error *err)
{
    const dsc_images_section *images = &engine->config.own.images;
    const int64_t *dim = engine->model->batch[0].dim;
    dsc_image_transform *t = &out->transform;
    *out = (dsc_picture_changes) { .enabled = images->enabled,
                                   .resize_given = images->resize > 0,
                                   .skip_broken = images->skip_broken,
                                   .dct_scaling = images->dct_scaling,
                                   .readers = choose_readers(engine),
                                   .pixels_max = images->pixels_max };
    t->width = (int32_t)dim[2], t->height = (int32_t)dim[1];
    DSC_TRY(dsc_image_preprocessor_sizes(from, t, err));
    if (images->resize > 0) {
        t->resize = (int32_t)images->resize;
        t->resize_width = t->resize_height = 0;
        if (t->resize < t->width || t->resize < t->height)
            return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.images.resize",
                            "%d is less than the model's %d by %d; give as much "
                            "or more",
                            (int)t->resize, (int)t->height, (int)t->width);
    }
    if (images->filter > 0)
        t->filter = images->filter == 2 ? DSC_RESAMPLE_BICUBIC : DSC_RESAMPLE_BILINEAR;
    if (!train)
        return DSC_OK;
    t->random_crop = images->random_crop;
    memcpy(t->scale, images->scale, sizeof t->scale);
    memcpy(t->ratio, images->ratio, sizeof t->ratio);
    t->flip = images->flip;
    t->rand_ops = (int32_t)images->rand_augment[0], t->rand_level = (int32_t)images->rand_augment[1];
    t->brightness = images->jitter[0], t->contrast = images->jitter[1];
    t->saturation = images->jitter[2], t->hue = images->jitter[3];
    return DSC_OK;
}

static bool is_encoded(const dsc_engine *engine, const dsc_config_paths *names)
{
    dsc_data_files files = { .alloc = engine->alloc };
    dsc_status status = DSC_OK;
    bool encoded = false;
    for (int i = 0; i < names->count && status == DSC_OK; i++)
        status = dsc_data_files_add(&files, dsc_config_path(names, i), i, NULL);
    for (int64_t i = 0; i < files.count && !encoded; i++)
        encoded = dsc_image_list_is(files.path[i]);
    dsc_data_files_free(&files);
    return encoded;
}

int64_t dsc_engine_decoder_bytes(const dsc_engine *engine)
{
    const dsc_ext_config *own = &engine->config.own;
    if (!dsc_model_sees_pictures(engine->model))
        return 0;
    const int sets = (is_encoded(engine, &own->data) ? 1 : 0) + (is_encoded(engine, &own->eval_data) ? 1 : 0);
    return sets * choose_readers(engine) * dsc_image_reader_encoded_bytes(own->images.pixels_max);
}

/* ---- mixed pictures ---------------------------------------------------------------------------------------------- */

static dsc_mix_options mix_of(const dsc_engine *engine)
{
    const dsc_images_section *images = &engine->config.own.images;
    return (dsc_mix_options) { .mixup = images->mixup,
                               .cutmix = images->cutmix,
                               .probability = images->mixup_prob,
                               .switch_probability = images->mixup_switch_prob };
}

dsc_status dsc_engine_check_mix(const dsc_engine *engine, dsc_error *err)
{
    const dsc_images_section *images = &engine->config.own.images;
    const char *const key = images->mixup > 0 ? "dsc.images.mixup" : "dsc.images.cutmix";
    if (images->mixup <= 0 && images->cutmix <= 0)
        return DSC_OK;
    if (!dsc_model_sees_pictures(engine->model) || !engine->model->labels.smooths)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "%s does not classify pictures: expected a model that sees pictures and whose labels are "
                        "classes; leave this key out",
                        engine->model->name);
    if (engine->input.source.fill != NULL && engine->input.pictures == NULL)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "the host program gives its own samples; mix them there, and leave this key out");
    if (engine->config.train_micro_batch_size_per_gpu < 2)
        return DSC_FAIL(err, DSC_ERR_CONFIG, key,
                        "a micro-batch of 1 picture has none to mix it with; set train_micro_batch_size_per_gpu to 2 "
                        "or more");
    return DSC_OK;
}

float dsc_engine_mixed(const dsc_engine *engine, uint64_t first_sample)
{
    const int64_t *dim = engine->model->batch[0].dim;
    const dsc_mix_options options = mix_of(engine);
    dsc_mix mix;
    if (engine->input.pictures == NULL || !engine->progress.batch_from_reader)
        return 0;
    dsc_mix_choose(&options, (uint64_t)engine->config.seed, first_sample, dim[1], dim[2], &mix);
    return (float)mix.share;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void report_files(const dsc_engine *engine, const dsc_pictures *pictures)
{
    const char *first = "";
    const int64_t count = dsc_pictures_left_out(pictures, &first);
    if (count > 0 && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "%lld file%s of class folders (%s%s) are no *.jpg, *.jpeg, *.png or *.webp, and are left out",
                       (long long)count, count == 1 ? "" : "s", first, count == 1 ? "" : ", ...");
}

static dsc_status open_named(dsc_engine *engine, const dsc_data_files *files, bool train, const char *const *names,
                             dsc_pictures **out, dsc_error *err)
{
    const int64_t *dim = engine->model->batch[0].dim;
    const dsc_images_section *images = &engine->config.own.images;
    dsc_image_preprocessor from;
    dsc_picture_options options = { .alloc = engine->alloc,
                                    .io = &engine->io,
                                    .paths = (const char *const *)files->path,
                                    .path_count = files->count,
                                    .planes = dim[0],
                                    .height = dim[1],
                                    .width = dim[2],
                                    .classes = engine->model->vocab_size,
                                    .shuffle = train && engine->config.own.shuffle,
                                    .seed = (uint64_t)engine->config.seed };
    DSC_TRY(dsc_image_preprocessor_open(&engine->io, engine->alloc, engine->input.model_folder, &from, err));
    const bool found = from.json != NULL;
    dsc_status status = dsc_picture_norm_load(&from, dim[0], &options.norm, err);
    if (status == DSC_OK)
        status = fill_changes(engine, &from, train, &options.changes, err);
    dsc_image_preprocessor_close(&from);
    DSC_TRY(status);
    DSC_TRY(take_numbers(engine, "dsc.images.mean", images->mean, images->mean_count, options.norm.mean, err));
    DSC_TRY(take_numbers(engine, "dsc.images.std", images->std, images->std_count, options.norm.std, err));
    options.changes.class_names = names;
    if (train)
        options.mix = mix_of(engine);
    if (!found && train && engine->place.rank == 0 && images->mean_count == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "no preprocessor_config.json beside the model, and no \"pretrained_cfg\" of timm: pixels from 0 "
                       "to 255 become -1 to 1");
    DSC_TRY(dsc_pictures_open(&options, out, err));
    report_files(engine, *out);
    return DSC_OK;
}

static dsc_status open_found(dsc_engine *engine, const dsc_data_files *files, bool train, dsc_pictures **out,
                             dsc_error *err)
{
    class_names own = { .name = NULL };
    dsc_status status = read_names(engine, &own, err);
    const bool named = own.name != NULL;
    if (status == DSC_OK)
        status = open_named(engine, files, train, own.name, out, err);
    close_names(engine, &own);
    if (status == DSC_OK && train && !named)
        status = keep_names(engine, err);
    return status;
}

dsc_status dsc_engine_open_pictures(dsc_engine *engine, const dsc_config_paths *names, bool train, dsc_pictures **out,
                                    dsc_error *err)
{
    dsc_data_files files = { .alloc = engine->alloc };
    dsc_status status = DSC_OK;
    if (train && engine->config.own.data_weight_count > 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.data_weights",
                        "weights are for files of texts, and the model sees pictures; leave this key out");
    if (engine->model->batch[0].dim[0] > DSC_PICTURE_CHANNELS_MAX)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, engine->model->name, "pictures of %lld planes; files have at most %d",
                        (long long)engine->model->batch[0].dim[0], DSC_PICTURE_CHANNELS_MAX);
    for (int i = 0; i < names->count && status == DSC_OK; i++)
        status = dsc_data_files_add(&files, dsc_config_path(names, i), i, err);
    for (int64_t i = 0; i < files.count && status == DSC_OK; i++)
        status = dsc_engine_check_outputs(engine, files.path[i], err);
    if (status == DSC_OK)
        status = open_found(engine, &files, train, out, err);
    dsc_data_files_free(&files);
    return status;
}

void dsc_engine_warn_of_pictures(const dsc_engine *engine)
{
    dsc_pictures *const all[] = { engine->input.pictures, engine->input.eval_pictures };
    char why[600];
    for (size_t i = 0; i < DSC_COUNT(all); i++) {
        const int64_t count = all[i] != NULL ? dsc_pictures_take_broken(all[i], why, sizeof why) : 0;
        if (count > 0)
            dsc_log_printf(&engine->log, DSC_LOG_WARNING, "rank %d skipped %lld broken picture%s: %s",
                           (int)engine->place.rank, (long long)count, count == 1 ? "" : "s, the last", why);
    }
}
