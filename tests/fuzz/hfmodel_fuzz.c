/* hfmodel_fuzz.c - any bytes as a Hugging Face config.json, or as the index of a folder's shards.
 *
 * The first byte chooses: 'I' an index beside a good config and two shards, 'Q' the text that says how a weight is
 * quantized, anything else a config. No crash, no leak
 * (the model's own allocator asserts), and what opens is a sound table that plans. SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/formats/safetensors.h"
#include "kernels/nf4.h"
#include "models/families.h"
#include "tests/fuzz/fuzz_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char config_text[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"n_positions\": 2, \"n_embd\": 2, "
                                  "\"n_layer\": 1, \"n_head\": 1}";

static const dsc_safetensors_spec specs[] = {
    { "wte.weight", { DSC_F32, 2, { 3, 2 } } },
    { "wpe.weight", { DSC_F32, 2, { 2, 2 } } },
    { "h.0.ln_1.weight", { DSC_F32, 1, { 2 } } },
    { "h.0.ln_1.bias", { DSC_F32, 1, { 2 } } },
    { "h.0.attn.c_attn.weight", { DSC_F32, 2, { 2, 6 } } },
    { "h.0.attn.c_attn.bias", { DSC_F32, 1, { 6 } } },
    { "h.0.attn.c_proj.weight", { DSC_F32, 2, { 2, 2 } } },
    { "h.0.attn.c_proj.bias", { DSC_F32, 1, { 2 } } },
    { "h.0.ln_2.weight", { DSC_F32, 1, { 2 } } },
    { "h.0.ln_2.bias", { DSC_F32, 1, { 2 } } },
    { "h.0.mlp.c_fc.weight", { DSC_F32, 2, { 2, 8 } } },
    { "h.0.mlp.c_fc.bias", { DSC_F32, 1, { 8 } } },
    { "h.0.mlp.c_proj.weight", { DSC_F32, 2, { 8, 2 } } },
    { "h.0.mlp.c_proj.bias", { DSC_F32, 1, { 2 } } },
    { "ln_f.weight", { DSC_F32, 1, { 2 } } },
    { "ln_f.bias", { DSC_F32, 1, { 2 } } },
};
#define FIRST_SHARD 6

static void must(dsc_status status)
{
    DSC_ASSERT(status == DSC_OK);
}

static void use_model(const dsc_model *model)
{
    dsc_error err = DSC_ERROR_INIT;
    must(dsc_model_check(model, &err));
    for (int32_t m = 0; m < model->module_count; m++) {
        dsc_module_plan plan;
        const dsc_module *module = &model->modules[m];
        const dsc_status status = module->plan(module, 2, DSC_BF16, NULL, &plan, &err);
        DSC_ASSERT(status == DSC_OK || status == DSC_ERR_STATE);
        DSC_ASSERT(status != DSC_OK || (plan.saved_bytes >= 0 && plan.forward_scratch_bytes >= 0));
        for (int32_t p = 0; p < module->param_count; p++) {
            bool found = false;
            float x = 0;
            must(model->load_param(model, m, p, 0, 1, &x, &found, &err));
        }
    }
}

static void open_and_use(const char *config_path, const char *dir)
{
    const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_model *model = NULL;
    must(dsc_alloc_open(&alloc, &err));
    const dsc_status status = dsc_hf_open(&model, alloc, config_path, dir, &options, NULL, &err);
    if (status == DSC_OK) {
        use_model(model);
        dsc_model_close(&model);
        return;
    }
    DSC_ASSERT(status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
    DSC_ASSERT(err.message[0] != 0);
    dsc_alloc_close(&alloc);
}

static void as_config(const uint8_t *data, size_t bytes)
{
    char path[64];
    const int fd = memfd_create("hfmodel_fuzz", MFD_CLOEXEC);
    DSC_ASSERT(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, bytes) == (ssize_t)bytes)
        open_and_use(path, NULL);
    close(fd);
}

static void write_shard(dsc_alloc *alloc, const char *dir, const char *name, size_t first, size_t count)
{
    char path[256];
    dsc_file file = DSC_FILE_INIT;
    dsc_safetensors_plan plan = { 0 };
    snprintf(path, sizeof path, "%s/%s", dir, name);
    must(dsc_safetensors_plan_open(&plan, alloc, specs + first, (int64_t)count, NULL, 0, NULL));
    must(dsc_io_open(NULL, path, DSC_IO_CREATE, &file, NULL));
    must(dsc_safetensors_write_header(&plan, NULL, &file, NULL));
    must(dsc_io_close(NULL, &file, NULL));
    dsc_safetensors_plan_close(&plan);
}

static fuzz_folder folder; /* of an index */

static void tidy_up(void)
{
    fuzz_folder_close(&folder);
}

static void open_folder(void)
{
    dsc_alloc *alloc = NULL;
    if (folder.dir[0] != 0)
        return;
    fuzz_folder_open(&folder, "model.safetensors.index.json");
    atexit(tidy_up);
    must(dsc_alloc_open(&alloc, NULL));
    fuzz_folder_write(&folder, "config.json", config_text, sizeof config_text - 1);
    write_shard(alloc, folder.dir, "a.safetensors", 0, FIRST_SHARD);
    write_shard(alloc, folder.dir, "b.safetensors", FIRST_SHARD, DSC_COUNT(specs) - FIRST_SHARD);
    dsc_alloc_close(&alloc);
}

static void as_index(const uint8_t *data, size_t bytes)
{
    char config_path[256];
    open_folder();
    fuzz_folder_set(&folder, data, bytes);
    must(dsc_path_join(config_path, sizeof config_path, folder.dir, "config.json", NULL));
    open_and_use(config_path, folder.dir);
}

/* ---- a weight in 4 bits ---- */

#define PACKED "h.0.attn.c_attn.weight"
#define STATE_BYTES_MAX 4096

static const char packed_config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 3, \"n_positions\": 2, \"n_embd\": 2, \"n_layer\": 1, \"n_head\": 1,"
    " \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true,"
    " \"bnb_4bit_quant_type\": \"nf4\", \"bnb_4bit_use_double_quant\": true}}";

static fuzz_folder packed; /* of a text */

static void tidy_up_packed(void) { fuzz_folder_close(&packed); }

static void open_packed_folder(void)
{
    if (packed.dir[0] != 0)
        return;
    fuzz_folder_open(&packed, "model.safetensors");
    atexit(tidy_up_packed);
    fuzz_folder_write(&packed, "config.json", packed_config, sizeof packed_config - 1);
}

static void put(char *to, const dsc_safetensors_plan *plan, size_t tensor, const void *from, size_t bytes)
{
    DSC_ASSERT(plan->offset[tensor] + (int64_t)bytes <= plan->file_bytes);
    memcpy(to + plan->offset[tensor], from, bytes);
}

static void as_state(const uint8_t *data, size_t bytes)
{
    enum { PARTS = 5, ALL = DSC_COUNT(specs) + PARTS, WEIGHT = 4 };
    char config_path[256];
    dsc_alloc *alloc = NULL;
    dsc_safetensors_plan plan = { 0 };
    dsc_safetensors_spec all[ALL];
    if (bytes == 0 || bytes > STATE_BYTES_MAX)
        return;
    open_packed_folder();
    must(dsc_alloc_open(&alloc, NULL));
    memcpy(all, specs, sizeof specs);
    all[WEIGHT].desc = (dsc_tensor_desc) { DSC_U8, 2, { 6, 1 } };
    const dsc_safetensors_spec parts[PARTS] = {
        { PACKED ".quant_map", { DSC_F32, 1, { 16 } } },
        { PACKED ".absmax", { DSC_U8, 1, { 1 } } },
        { PACKED ".nested_absmax", { DSC_F32, 1, { 1 } } },
        { PACKED ".nested_quant_map", { DSC_F32, 1, { 256 } } },
        { PACKED ".quant_state.bitsandbytes__nf4", { DSC_U8, 1, { (int64_t)bytes } } },
    };
    memcpy(all + DSC_COUNT(specs), parts, sizeof parts);
    must(dsc_safetensors_plan_open(&plan, alloc, all, ALL, NULL, 0, NULL));
    char *file = calloc(1, (size_t)plan.file_bytes);
    DSC_ASSERT(file != NULL);
    memcpy(file, plan.header, (size_t)plan.header_bytes);
    put(file, &plan, DSC_COUNT(specs), dsc_nf4_values, sizeof dsc_nf4_values);
    put(file, &plan, DSC_COUNT(specs) + 3, dsc_nf4_scale_values, sizeof dsc_nf4_scale_values);
    put(file, &plan, DSC_COUNT(specs) + 4, data, bytes);
    fuzz_folder_set(&packed, (const uint8_t *)file, (size_t)plan.file_bytes);
    free(file);
    dsc_safetensors_plan_close(&plan);
    dsc_alloc_close(&alloc);
    must(dsc_path_join(config_path, sizeof config_path, packed.dir, "config.json", NULL));
    open_and_use(config_path, packed.dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes > 0 && data[0] == 'Q') {
        as_state(data + 1, bytes - 1);
        return 0;
    }
    if (bytes > 0 && data[0] == 'I')
        as_index(data + 1, bytes - 1);
    else
        as_config(data, bytes);
    return 0;
}
