/* adapter_fuzz.c - any bytes as the adapter_config.json of an adapter's folder, or as its adapter_model.safetensors.
 *
 * The first byte chooses: W the weights beside a good config, anything else a config beside good weights. No crash, no
 * leak (the model's own allocator asserts); what opens is a sound table whose adapters load, what does not is refused
 * with a reason. SPDX-License-Identifier: Apache-2.0 */
#include <dsc/model.h>

#include "base/formats/safetensors.h"
#include "tests/fuzz/fuzz_folder.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char base[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"n_positions\": 2, \"n_embd\": 2, "
                           "\"n_layer\": 1, \"n_head\": 1}";
static const char good[] = "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 2, \"target_modules\": [\"c_attn\"], "
                           "\"fan_in_fan_out\": true}";
static const dsc_safetensors_spec specs[] = {
    { "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight", { DSC_F32, 2, { 1, 2 } } },
    { "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight", { DSC_F32, 2, { 6, 1 } } },
};

static void must(dsc_status status)
{
    DSC_ASSERT(status == DSC_OK);
}

static void write_weights(const char *dir)
{
    char path[256];
    dsc_alloc *alloc = NULL;
    dsc_file file = DSC_FILE_INIT;
    dsc_safetensors_plan plan = { 0 };
    must(dsc_alloc_open(&alloc, NULL));
    must(dsc_path_join(path, sizeof path, dir, WEIGHTS, NULL));
    must(dsc_safetensors_plan_open(&plan, alloc, specs, DSC_COUNT(specs), NULL, 0, NULL));
    must(dsc_io_open(NULL, path, DSC_IO_CREATE, &file, NULL));
    must(dsc_safetensors_write_header(&plan, NULL, &file, NULL));
    must(dsc_io_close(NULL, &file, NULL));
    dsc_safetensors_plan_close(&plan);
    dsc_alloc_close(&alloc);
}

static void use_model(const dsc_model *model)
{
    must(dsc_model_check(model, NULL));
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++) {
            bool found = false;
            float x = 0;
            must(model->load_param(model, m, p, 0, 1, &x, &found, NULL));
        }
}

static void open_and_use(const char *dir)
{
    char path[256];
    dsc_error err = DSC_ERROR_INIT;
    dsc_model *model = NULL;
    dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    must(dsc_path_join(path, sizeof path, dir, "config.json", NULL));
    lora.adapter = dir;
    options.lora = &lora;
    const dsc_status status = dsc_model_open(&model, path, &options, &err);
    if (status == DSC_OK)
        use_model(model);
    else
        DSC_ASSERT((status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED) && err.message[0] != 0);
    dsc_model_close(&model);
}

/* A fuzzed config beside good weights, and fuzzed weights beside a good config. */
static fuzz_folder folders[2];

static void tidy_up(void)
{
    fuzz_folder_close(&folders[0]);
    fuzz_folder_close(&folders[1]);
}

static void open_folders(void)
{
    if (folders[0].dir[0] != 0)
        return;
    fuzz_folder_open(&folders[0], CONFIG);
    fuzz_folder_open(&folders[1], WEIGHTS);
    atexit(tidy_up);
    write_weights(folders[0].dir);
    fuzz_folder_write(&folders[1], CONFIG, good, sizeof good - 1);
    for (int i = 0; i < 2; i++)
        fuzz_folder_write(&folders[i], "config.json", base, sizeof base - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const size_t weights = bytes > 0 && data[0] == 'W' ? 1 : 0;
    open_folders();
    fuzz_folder_set(&folders[weights], data + weights, bytes - weights);
    open_and_use(folders[weights].dir);
    return 0;
}
