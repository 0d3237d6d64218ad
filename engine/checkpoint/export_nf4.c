/* export_nf4.c - see export_nf4.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/checkpoint/export_nf4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"

#define OFFSET_BYTES 24 /* longest text of a double */

enum { CODES, SCALES, MAP, STATE, TOPS, SCALE_MAP };

bool dsc_ckpt_nf4_is(const dsc_safetensors_entry *weight)
{
    /* Linear layers that transformers packs too, although they are in no block. */
    static const char *const outside[] = { "model.decoder.project_in.weight", "model.decoder.project_out.weight",
                                           "cls.predictions.transform.dense.weight" };
    static const char end[] = ".weight";
    const size_t bytes = strlen(weight->name), end_bytes = sizeof end - 1;
    bool in_block = false;
    DSC_ASSERT(weight->desc.dim_count <= DSC_DIMS_MAX);
    for (size_t i = 0; i < DSC_COUNT(outside); i++)
        if (strcmp(weight->name, outside[i]) == 0)
            return weight->count > 0;
    if (weight->desc.dim_count != 2 || weight->count == 0 || bytes <= end_bytes ||
        strcmp(weight->name + bytes - end_bytes, end) != 0)
        return false;
    for (const char *dot = strchr(weight->name, '.'); dot != NULL && !in_block; dot = strchr(dot + 1, '.')) {
        const size_t digits = strspn(dot + 1, "0123456789");
        in_block = digits > 0 && dot[1 + digits] == '.';
    }
    return in_block;
}

/* ---- a weight ---- */

/* As json.dumps of Python writes the number: the fewest digits that read back as the same double. */
static void number_text(double value, char out[OFFSET_BYTES + 1])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, OFFSET_BYTES + 1, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static const char *dtype_name(dsc_dtype dtype)
{
    DSC_ASSERT(dtype == DSC_F32 || dtype == DSC_BF16 || dtype == DSC_F16);
    return dtype == DSC_F32 ? "float32" : dtype == DSC_BF16 ? "bfloat16" : "float16";
}

/* The length does not depend on the offset, so that the file's header can be written before a weight is packed: spaces
 * fill the text up. Returns the length. */
static int64_t write_state(dsc_ckpt_nf4_weight *w, float offset)
{
    char number[OFFSET_BYTES + 1];
    int used = snprintf(w->state, sizeof w->state,
                        "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%lld, %lld]",
                        DSC_NF4_BLOCK, dtype_name(w->dtype), (long long)w->rows, (long long)w->cols);
    number_text((double)offset, number);
    if (w->kind == DSC_NF4_NESTED)
        used += snprintf(w->state + used, sizeof w->state - (size_t)used,
                         ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %-*s",
                         DSC_NF4_NESTED_BLOCK, OFFSET_BYTES, number);
    used += snprintf(w->state + used, sizeof w->state - (size_t)used, "}");
    DSC_ASSERT(used < (int)sizeof w->state);
    return used;
}

static dsc_ckpt_nf4_part part_of(const char *suffix, dsc_dtype dtype, int64_t count)
{
    DSC_ASSERT(count > 0);
    return (dsc_ckpt_nf4_part) { suffix, { dtype, 1, { count } }, count * (int64_t)dsc_dtype_bytes(dtype), NULL };
}

void dsc_ckpt_nf4_parts(dsc_nf4 kind, const dsc_safetensors_entry *weight, dsc_dtype dtype, bool transposed,
                        dsc_ckpt_nf4_weight *out)
{
    const int64_t count = weight->count;
    DSC_ASSERT(kind != DSC_NF4_NONE);
    DSC_ASSERT(dsc_ckpt_nf4_is(weight));
    *out = (dsc_ckpt_nf4_weight) { .kind = kind, .dtype = dtype, .transposed = transposed };
    out->rows = weight->desc.dim[transposed ? 1 : 0];
    out->cols = weight->desc.dim[transposed ? 0 : 1];
    out->part[CODES] = part_of("", DSC_U8, (count + 1) / 2);
    out->part[CODES].desc.dim_count = 2;
    out->part[CODES].desc.dim[1] = 1;
    out->part[SCALES] = part_of(".absmax", kind == DSC_NF4_NESTED ? DSC_U8 : DSC_F32, dsc_nf4_blocks(count));
    out->part[MAP] = part_of(".quant_map", DSC_F32, 16);
    out->part[STATE] = part_of(".quant_state.bitsandbytes__nf4", DSC_U8, write_state(out, 0));
    out->part_count = STATE + 1;
    if (kind != DSC_NF4_NESTED)
        return;
    out->part[TOPS] = part_of(".nested_absmax", DSC_F32, dsc_nf4_tops(count));
    out->part[SCALE_MAP] = part_of(".nested_quant_map", DSC_F32, 256);
    out->part_count = SCALE_MAP + 1;
}

dsc_status dsc_ckpt_nf4_open(dsc_ckpt_nf4_weight *w, dsc_alloc *alloc, dsc_error *err)
{
    const int64_t count = w->rows * w->cols, blocks = dsc_nf4_blocks(count);
    DSC_ASSERT(w->x == NULL && w->part_count > 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, count, sizeof *w->x, &w->x, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, (count + 1) / 2, 1, &w->codes, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, blocks, sizeof *w->scales, &w->scales, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, blocks, 1, &w->scale_codes, err));
    return dsc_alloc_zeroed(alloc, DSC_TAG_IO, dsc_nf4_tops(count), sizeof *w->tops, &w->tops, err);
}

void dsc_ckpt_nf4_pack(dsc_ckpt_nf4_weight *w)
{
    const int64_t count = w->rows * w->cols;
    float offset = 0;
    DSC_ASSERT(w->tops != NULL);
    dsc_nf4_pack(w->x, count, w->codes, w->scales);
    if (w->kind == DSC_NF4_NESTED)
        dsc_nf4_pack_scales(w->scales, dsc_nf4_blocks(count), w->scale_codes, w->tops, &offset);
    const int64_t bytes = write_state(w, offset);
    DSC_ASSERT(bytes == w->part[STATE].bytes);
    w->part[CODES].data = w->codes;
    w->part[SCALES].data = w->kind == DSC_NF4_NESTED ? (const void *)w->scale_codes : w->scales;
    w->part[MAP].data = dsc_nf4_values;
    w->part[STATE].data = w->state;
    w->part[TOPS].data = w->tops;
    w->part[SCALE_MAP].data = dsc_nf4_scale_values;
}

void dsc_ckpt_nf4_close(dsc_ckpt_nf4_weight *w, dsc_alloc *alloc)
{
    DSC_ASSERT(alloc != NULL);
    dsc_alloc_free(alloc, w->tops);
    dsc_alloc_free(alloc, w->scale_codes);
    dsc_alloc_free(alloc, w->scales);
    dsc_alloc_free(alloc, w->codes);
    dsc_alloc_free(alloc, w->x);
    *w = (dsc_ckpt_nf4_weight) { 0 };
}

/* ---- config.json ---- */

/* Whether a config.json is that of a mixture of experts. */
static bool has_experts(const cJSON *root)
{
    static const char *const keys[] = { "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts" };
    bool has = false;
    for (size_t i = 0; i < DSC_COUNT(keys); i++)
        has |= cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(root, keys[i]));
    return has;
}

static dsc_status check_root(const char *path, const cJSON *root, bool *transposed, dsc_error *err)
{
    /* All matrices of their blocks are linear layers; dsc_ckpt_nf4_is knows those elsewhere. */
    static const char *const families[] = { "llama",   "mistral", "ministral", "qwen2",   "qwen3",    "gpt_neox",
                                            "opt",     "bert",    "phi3",      "gemma",   "gemma2",   "gemma3_text",
                                            "granite", "olmo2",   "olmo3",     "smollm3", "stablelm", "starcoder2",
                                            "glm",     "glm4",    "cohere",    "cohere2", "seed_oss", "gpt2" };
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "model_type");
    DSC_ASSERT(path != NULL);
    if (cJSON_GetObjectItemCaseSensitive(root, "quantization_config") != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "\"quantization_config\" is there already; export without --nf4");
    for (size_t i = 0; cJSON_IsString(type) && i < DSC_COUNT(families); i++)
        if (strcmp(type->valuestring, families[i]) == 0) {
            *transposed = strcmp(type->valuestring, "gpt2") == 0; /* its Conv1D becomes a linear layer */
            return DSC_OK;
        }
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    if (has_experts(root))
        return DSC_FAIL(
            err, DSC_ERR_UNSUPPORTED, path,
            "\"model_type\" is \"%.40s\", whose experts are parameters that transformers and bitsandbytes do "
            "not read in 4 bits; export without --nf4, and load with load_in_4bit",
            name);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, path,
                    "\"model_type\" is \"%.40s\"; weights in 4 bits are written for llama and families like it "
                    "(docs/models.md), gpt2, gpt_neox, opt and bert; export without --nf4",
                    name);
}

dsc_status dsc_ckpt_nf4_check_config(dsc_alloc *alloc, const char *path, const char *text, int64_t bytes,
                                     bool *transposed, dsc_error *err)
{
    static const dsc_json_limits limits = DSC_JSON_LIMITS_MODEL;
    dsc_json *json = NULL;
    DSC_ASSERT(bytes >= 0);
    DSC_TRY(dsc_json_open(alloc, path, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const dsc_status status = check_root(path, dsc_json_root(json), transposed, err);
    dsc_json_close(&json);
    return status;
}

dsc_status dsc_ckpt_nf4_config(dsc_alloc *alloc, const char *text, int64_t bytes, dsc_nf4 kind, dsc_dtype dtype,
                               char **out, int64_t *out_bytes, dsc_error *err)
{
    /* The keys that transformers writes, with its defaults. */
    static const char section[] =
        "\n  \"quantization_config\": {\n    \"_load_in_4bit\": true,\n    \"_load_in_8bit\": false,\n"
        "    \"bnb_4bit_compute_dtype\": \"%s\",\n    \"bnb_4bit_quant_storage\": \"uint8\",\n"
        "    \"bnb_4bit_quant_type\": \"nf4\",\n    \"bnb_4bit_use_double_quant\": %s,\n"
        "    \"llm_int8_enable_fp32_cpu_offload\": false,\n    \"llm_int8_has_fp16_weight\": false,\n"
        "    \"llm_int8_skip_modules\": null,\n    \"llm_int8_threshold\": 6.0,\n    \"load_in_4bit\": true,\n"
        "    \"load_in_8bit\": false,\n    \"quant_method\": \"bitsandbytes\"\n  },";
    const char *const brace = memchr(text, '{', (size_t)bytes);
    const int64_t most = bytes + (int64_t)sizeof section + 32;
    DSC_ASSERT(brace != NULL);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, most, 1, out, err));
    int64_t used = brace + 1 - text;
    memcpy(*out, text, (size_t)used);
    used += snprintf(*out + used, (size_t)(most - used), section, dtype_name(dtype),
                     kind == DSC_NF4_NESTED ? "true" : "false");
    memcpy(*out + used, brace + 1, (size_t)(text + bytes - brace - 1));
    *out_bytes = used + (text + bytes - brace - 1);
    DSC_ASSERT(*out_bytes < most);
    return DSC_OK;
}
