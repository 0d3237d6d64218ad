/* tiny_gpt.c - see tiny_gpt.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tiny_gpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static dsc_status open_text(dsc_model **out, const char *config, const dsc_model_options *options, dsc_error *err)
{
    char path[] = "/tmp/dsc-tiny-model-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    if (fd < 0 || dprintf(fd, "%s", config) < 1)
        abort();
    close(fd);
    const dsc_status status = dsc_model_open(out, path, options, err);
    unlink(path);
    return status;
}

dsc_model *tiny_model_open_part(const char *config, int32_t ranks, int32_t rank, dsc_error *err)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *model = NULL;
    options.tensor_ranks = ranks;
    options.tensor_rank = rank;
    return open_text(&model, config, &options, err) == DSC_OK ? model : NULL;
}

dsc_model *tiny_model_open(const char *config, const dsc_lora_options *lora)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    options.lora = lora;
    if (open_text(&model, config, &options, &err) != DSC_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        abort();
    }
    return model;
}

dsc_model *tiny_gpt_open(const tiny_gpt *shape)
{
    char config[256];
    snprintf(config, sizeof config,
             "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_positions\": %d, \"n_embd\": 64,"
             " \"n_head\": %d, \"n_layer\": %d, \"layer_norm_epsilon\": 1e-5}",
             (int)shape->vocab, (int)shape->sequence, (int)shape->heads, (int)shape->layers);
    return tiny_model_open(config, NULL);
}

/* One of each T / K tokens. */
static void predict(const dsc_model *model, int64_t first_sample, int64_t count, int32_t *targets, int32_t *predicted)
{
    const int64_t each = model->losses_per_sample, apart = model->seq_length / each;
    for (int64_t i = 0; i < count * each; i++) {
        const int64_t sample = first_sample + i / each;
        targets[i] = (int32_t)((sample * each + i % each) % 7);
        predicted[i] = (int32_t)(i % each * apart + sample % apart);
    }
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const dsc_model *model = user;
    const int64_t sequence = model->seq_length;
    for (int64_t i = 0; i < count * sequence; i++) {
        uint64_t x = ((uint64_t)(first_sample * sequence + i) + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        ((int32_t *)data[0])[i] = (int32_t)((x >> 20) % (uint64_t)model->vocab_size);
        if (model->losses_per_sample == sequence)
            ((int32_t *)data[1])[i] = (int32_t)((x >> 40) % 7);
    }
    if (model->losses_per_sample < sequence)
        predict(model, first_sample, count, data[1], data[2]);
    return DSC_OK;
}

dsc_data_source tiny_gpt_data(const dsc_model *model, int64_t sample_count)
{
    return (dsc_data_source){ .fill = fill, .user = (void *)(uintptr_t)model, .sample_count = sample_count };
}

static dsc_status fill_masked(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const int64_t each = ((const dsc_model *)user)->losses_per_sample;
    DSC_TRY(fill(user, first_sample, count, data, err));
    for (int64_t i = 0; i < count * each; i++)
        if ((first_sample + i / each) % 3 == 0 || i % 2 == 0)
            ((int32_t *)data[1])[i] = i % 4 == 0 ? -1 : -100;
    return DSC_OK;
}

dsc_data_source tiny_gpt_masked_data(const dsc_model *model, int64_t sample_count)
{
    return (dsc_data_source) { .fill = fill_masked, .user = (void *)(uintptr_t)model, .sample_count = sample_count };
}
