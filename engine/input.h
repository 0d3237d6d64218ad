/* input.h - the samples of a run: their source, their reader and the length of the run (input.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_INPUT_H
#define DSC_ENGINE_INPUT_H

#include <dsc/dsc.h>

#include "engine/config/config.h"
#include "engine/data/data.h"
#include "engine/data/pictures.h"

/* The part of struct dsc_engine. */
typedef struct dsc_engine_input {
    dsc_data_source source, eval_source;    /* fill NULL: none */
    dsc_data *data, *eval;                  /* of tokens */
    dsc_pictures *pictures, *eval_pictures; /* data of a model of pictures */
    char *class_config;                     /* the model's config with the classes of the data; NULL: its own */
    dsc_reader *reader;
    dsc_skips skips; /* batches that a rewind leaves out */
    bool drawn; /* a network of pictures would see drawn ones, as no data is named */
    bool masks; /* the source may have masked targets; equal on all ranks */
    int64_t samples_per_epoch, steps_per_epoch, total_steps;
    char tokenizer[DSC_CONFIG_TEXT]; /* "": bytes are tokens */
    const char *model_folder;        /* NULL: the model has no folder */
    bool tokenizer_compared;         /* with the model's vocabulary */
    int64_t grown_tokens;            /* rows that dsc.grow_vocab asks for; 0: as many as the model has */
} dsc_engine_input;

/* The data has examples that share samples: the model has to keep them apart. Reads the beginning of each file. */
bool dsc_engine_packs_examples(const dsc_engine *engine);
/* One rank of a host scans for all of them. */
dsc_status dsc_engine_open_data(dsc_engine *engine, const dsc_engine_options *options, dsc_error *err);
/* A log or a trace over an input would be its end. */
dsc_status dsc_engine_check_outputs(const dsc_engine *engine, const char *input, dsc_error *err);
/* input_pictures.c: no data is named, and the caller's default has drawn pictures. */
bool dsc_engine_draws_pictures(const dsc_engine *engine, const dsc_engine_options *options);
/* input_pictures.c: bytes of the readers of the lists of encoded pictures, also before they are open. */
int64_t dsc_engine_decoder_bytes(const dsc_engine *engine);
/* input_pictures.c: sizes of a built-in network: those of the config, else those of the data's first file. */
void dsc_engine_size_network(const dsc_engine *engine, struct dsc_network_options *out);
/* input_pictures.c: the files of a list as samples. */
dsc_status dsc_engine_open_pictures(dsc_engine *engine, const dsc_config_paths *names, bool train, dsc_pictures **out,
                                    dsc_error *err);
/* Refuses dsc.images.mixup and cutmix where pictures cannot be mixed. */
dsc_status dsc_engine_check_mix(const dsc_engine *engine, dsc_error *err);
/* Share of the label before, of a micro-batch of training whose first sample in the run is this one (kernels/
 * label_loss.h); 0: its pictures are not mixed. */
float dsc_engine_mixed(const dsc_engine *engine, uint64_t first_sample);
/* Warns of pictures that were skipped since the last call. */
void dsc_engine_warn_of_pictures(const dsc_engine *engine);
dsc_status dsc_engine_scan_data(dsc_engine *engine, dsc_error *err);

#endif
