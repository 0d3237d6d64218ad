/* input_pictures.c - the files of pictures that the config names. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/files.h"
#include "engine/data/pictures.h"
#include "engine/internal.h"

static dsc_status open_found(dsc_engine *engine, const dsc_data_files *files, bool train, dsc_pictures **out,
                             dsc_error *err)
{
    const int64_t *dim = engine->model->batch[0].dim;
    bool found = false;
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
    DSC_TRY(dsc_picture_norm_read(&engine->io, engine->alloc, engine->input.model_folder, dim[0], &options.norm, &found,
                                  err));
    if (!found && train && engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "no preprocessor_config.json beside the model: pixels from 0 to 255 become -1 to 1");
    return dsc_pictures_open(&options, out, err);
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
