/* test_packed_weights.c - folders whose weights bitsandbytes has put in NF4: their bits stay, unpacked they are the
 * formula's numbers, and files that contradict themselves are refused by name. tests/cli/test_qlora.sh reads folders of
 * transformers. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/nf4.h"
#include "tests/support/model_folder.h"

#define CONFIG(quantization)                                                                                           \
    "{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 64, \"num_hidden_layers\": 1,"                   \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 88,"                              \
    " \"max_position_embeddings\": 16, \"tie_word_embeddings\": true" quantization "}"
#define QUANTIZED(more)                                                                                                \
    CONFIG(", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true," more "}")
#define DOUBLE QUANTIZED("\"bnb_4bit_quant_type\": \"nf4\", \"bnb_4bit_use_double_quant\": true")
#define SINGLE QUANTIZED("\"bnb_4bit_quant_type\": \"nf4\"")
#define LAYER "model.layers.0."
#define Q LAYER "self_attn.q_proj.weight"

enum { COUNT = 64 * 64, BLOCKS = COUNT / DSC_NF4_BLOCK, TENSORS_MAX = 24 };

typedef struct tensor {
    const char *name, *dtype;
    int64_t dim[2];
    int32_t dim_count;
    const void *data; /* NULL: zeros */
    int64_t bytes;
} tensor;

/* A folder before it is written. */
typedef struct folder {
    const char *config;
    tensor tensor[TENSORS_MAX];
    int count;
    char state[512];
} folder;

static float numbers[COUNT], scales[BLOCKS], tops[1], offset;
static uint8_t codes[COUNT / 2], scale_codes[BLOCKS];
static const char single_state[] =
    "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [64, 64]}";

static void add(folder *f, const char *name, const char *dtype, int64_t rows, int64_t cols, const void *data)
{
    const int64_t each = strcmp(dtype, "U8") == 0 ? 1 : strcmp(dtype, "BF16") == 0 ? 2 : 4;
    assert_true(f->count < TENSORS_MAX);
    f->tensor[f->count++] = (tensor) { .name = name,
                                       .dtype = dtype,
                                       .dim = { rows, cols },
                                       .dim_count = cols == 0 ? 1 : 2,
                                       .data = data,
                                       .bytes = rows * (cols == 0 ? 1 : cols) * each };
}

static void add_text(folder *f, const char *text)
{
    snprintf(f->state, sizeof f->state, "%s", text);
    add(f, Q ".quant_state.bitsandbytes__nf4", "U8", (int64_t)strlen(f->state), 0, f->state);
}

/* q_proj in 4 bits, all others as they are. */
static void make(folder *f, bool nested)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } plain[] = {
        { "model.embed_tokens.weight", 61, 64 },
        { LAYER "self_attn.k_proj.weight", 32, 64 },
        { LAYER "self_attn.v_proj.weight", 32, 64 },
        { LAYER "self_attn.o_proj.weight", 64, 64 },
        { LAYER "mlp.gate_proj.weight", 88, 64 },
        { LAYER "mlp.up_proj.weight", 88, 64 },
        { LAYER "mlp.down_proj.weight", 64, 88 },
        { LAYER "input_layernorm.weight", 64, 0 },
        { LAYER "post_attention_layernorm.weight", 64, 0 },
        { "model.norm.weight", 64, 0 },
    };
    char text[400];
    *f = (folder) { .config = nested ? DOUBLE : SINGLE };
    for (size_t i = 0; i < DSC_COUNT(plain); i++)
        add(f, plain[i].name, "BF16", plain[i].rows, plain[i].cols, NULL);
    add(f, Q, "U8", COUNT / 2, 1, codes);
    add(f, Q ".quant_map", "F32", 16, 0, dsc_nf4_values);
    add(f, Q ".absmax", nested ? "U8" : "F32", BLOCKS, 0, nested ? (const void *)scale_codes : scales);
    snprintf(text, sizeof text,
             "%.*s, \"nested_blocksize\": 256, \"nested_dtype\": \"float32\","
             " \"nested_offset\": %.17g}",
             (int)strlen(single_state) - 1, single_state, (double)offset);
    add_text(f, nested ? text : single_state);
    if (!nested)
        return;
    add(f, Q ".nested_absmax", "F32", 1, 0, tops);
    add(f, Q ".nested_quant_map", "F32", 256, 0, dsc_nf4_scale_values);
}

static void write_folder(const folder *f)
{
    char head[8192];
    int64_t at = 0, bytes = 1;
    head[0] = '{';
    for (int i = 0; i < f->count; i++) {
        const tensor *t = &f->tensor[i];
        bytes += snprintf(head + bytes, sizeof head - (size_t)bytes, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld",
                          i > 0 ? "," : "", t->name, t->dtype, (long long)t->dim[0]);
        if (t->dim_count == 2)
            bytes += snprintf(head + bytes, sizeof head - (size_t)bytes, ",%lld", (long long)t->dim[1]);
        bytes += snprintf(head + bytes, sizeof head - (size_t)bytes, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                          (long long)(at + t->bytes));
        at += t->bytes;
    }
    head[bytes++] = '}';
    assert_true(bytes < (int64_t)sizeof head);
    mf_empty();
    mf_write("config.json", f->config);
    FILE *file = fopen(mf_path("model.safetensors"), "wb");
    assert_non_null(file);
    const uint64_t length = (uint64_t)bytes;
    fwrite(&length, 8, 1, file);
    fwrite(head, (size_t)bytes, 1, file);
    for (int i = 0; i < f->count; i++) {
        void *zeros = calloc(1, (size_t)f->tensor[i].bytes);
        fwrite(f->tensor[i].data != NULL ? f->tensor[i].data : zeros, (size_t)f->tensor[i].bytes, 1, file);
        free(zeros);
    }
    assert_int_equal(fclose(file), 0);
}

static tensor *find(folder *f, const char *name)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->tensor[i].name, name) == 0)
            return &f->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void drop(folder *f, const char *name)
{
    tensor *t = find(f, name);
    *t = f->tensor[--f->count];
}

/* ---- what is read ---- */

static void find_param(const dsc_model *model, const char *name, int32_t *module, int32_t *param)
{
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (strcmp(model->modules[m].params[p].name, name) == 0) {
                *module = m;
                *param = p;
                return;
            }
    fail_msg("no parameter %s", name);
}

static void expect_part(const dsc_model *model, int32_t m, int32_t p, dsc_packed_part part, int64_t first,
                        int64_t bytes, const void *expected)
{
    uint8_t got[COUNT];
    bool found = false;
    assert_int_equal(model->load_packed(model, m, p, part, first, bytes, got, &found, NULL), DSC_OK);
    assert_true(found);
    assert_memory_equal(got, expected, (size_t)bytes);
}

static void keeps_bits_and_unpacks(void **state)
{
    for (int nested = 0; nested < 2; nested++) {
        folder f;
        int32_t m = 0, p = 0;
        float got[COUNT];
        bool found = false;
        make(&f, nested != 0);
        write_folder(&f);
        dsc_model *model = mf_open(mf_dir, NULL);
        assert_int_equal(model->packed_files, nested ? DSC_PACKED_DOUBLE : DSC_PACKED_SINGLE);
        assert_null(strstr(model->config_json, "quantization_config")); /* what this model saves is not in 4 bits */
        find_param(model, Q, &m, &p);
        assert_false(model->modules[m].params[p].as_stored);
        expect_part(model, m, p, DSC_PACKED_CODES, 32, 640, codes + 32);
        if (nested) {
            expect_part(model, m, p, DSC_PACKED_SCALES, 3, BLOCKS - 3, scale_codes + 3);
            expect_part(model, m, p, DSC_PACKED_TOPS, 0, 4, tops);
            expect_part(model, m, p, DSC_PACKED_OFFSET, 0, 4, &offset);
        } else {
            expect_part(model, m, p, DSC_PACKED_SCALES, 8, 4 * BLOCKS - 8, scales + 2);
        }
        static const int64_t firsts[] = { 0, 1, 63, 64, 2049 };
        for (size_t k = 0; k < DSC_COUNT(firsts); k++) {
            assert_int_equal(model->load_param(model, m, p, firsts[k], COUNT - firsts[k], got, &found, NULL), DSC_OK);
            for (int64_t i = firsts[k]; i < COUNT; i++) {
                const float scale = nested ? dsc_nf4_scale(scale_codes[i / 64], tops[0], offset) : scales[i / 64];
                assert_true(got[i - firsts[k]] ==
                            dsc_nf4_values[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * scale);
            }
        }
        find_param(model, LAYER "mlp.up_proj.weight", &m, &p);
        assert_true(model->modules[m].params[p].as_stored);
        assert_int_equal(model->load_packed(model, m, p, DSC_PACKED_CODES, 0, 1, got, &found, NULL), DSC_OK);
        assert_false(found);
        dsc_model_close(&model);
    }
}

/* bnb_4bit_quant_storage: the codes' bytes under another dtype. */
static void codes_may_have_another_dtype(void **state)
{
    folder f;
    int32_t m = 0, p = 0;
    make(&f, true);
    find(&f, Q)->dtype = "BF16";
    find(&f, Q)->dim[0] = COUNT / 4;
    write_folder(&f);
    dsc_model *model = mf_open(mf_dir, NULL);
    find_param(model, Q, &m, &p);
    expect_part(model, m, p, DSC_PACKED_CODES, 0, COUNT / 2, codes);
    dsc_model_close(&model);
}

/* ---- what is refused ---- */

static void expect_refused(const folder *f, dsc_status status, const char *what)
{
    write_folder(f);
    mf_expect_refusal(mf_dir, NULL, status, what);
}

static void refuses_missing_and_wrong_parts(void **state)
{
    static const struct {
        const char *name, *what;
    } parts[] = {
        { Q ".absmax", "q_proj.weight.absmax\" is missing beside its weight" },
        { Q ".quant_map", "quant_map\" is missing" },
        { Q ".nested_absmax", "nested_absmax\" is missing" },
        { Q ".nested_quant_map", "nested_quant_map\" is missing" },
        { Q ".quant_state.bitsandbytes__nf4", "needs [64,64]" }, /* then it is a matrix of bytes */
    };
    folder f;
    for (size_t i = 0; i < DSC_COUNT(parts); i++) {
        make(&f, true);
        drop(&f, parts[i].name);
        expect_refused(&f, DSC_ERR_INPUT, parts[i].what);
        if (i == DSC_COUNT(parts) - 1)
            break;
        make(&f, true);
        tensor *t = find(&f, parts[i].name);
        t->dim[0]--;
        t->bytes -= strcmp(t->dtype, "U8") == 0 ? 1 : 4;
        expect_refused(&f, DSC_ERR_INPUT, "a weight [64,64] in 4 bits needs");
    }
    make(&f, true);
    find(&f, Q)->dim[0]--;
    find(&f, Q)->bytes--;
    expect_refused(&f, DSC_ERR_INPUT, "has 2047 bytes; [64,64] in 4 bits has 2048");
    make(&f, false);
    f.config = DOUBLE;
    expect_refused(&f, DSC_ERR_INPUT, "in 4 bits without double quantization");
    make(&f, false);
    f.config = CONFIG("");
    expect_refused(&f, DSC_ERR_INPUT, "config.json says otherwise");
    make(&f, false);
    add(&f, LAYER "self_attn.q_proj.weight.more", "U8", 1, 0, NULL);
    expect_refused(&f, DSC_ERR_INPUT, "q_proj.weight.more\" is not one of a llama");
}

static void refuses_numbers_of_other_codes(void **state)
{
    float other[256], scale[BLOCKS];
    folder f;
    memcpy(other, dsc_nf4_values, sizeof dsc_nf4_values);
    other[3] = -0.4f;
    make(&f, true);
    find(&f, Q ".quant_map")->data = other;
    expect_refused(&f, DSC_ERR_UNSUPPORTED, "quant_map\" is -0.400000006 at element 3");
    memcpy(other, dsc_nf4_scale_values, sizeof other);
    other[200] = NAN;
    make(&f, true);
    find(&f, Q ".nested_quant_map")->data = other;
    expect_refused(&f, DSC_ERR_INPUT, "is NaN at element 200");
    memcpy(scale, scales, sizeof scale);
    scale[BLOCKS - 1] = INFINITY;
    make(&f, false);
    find(&f, Q ".absmax")->data = scale;
    write_folder(&f);
    dsc_model *model = mf_open(mf_dir, NULL);
    int32_t m = 0, p = 0;
    bool found = false;
    float got[COUNT];
    dsc_error err = DSC_ERROR_INIT;
    find_param(model, Q, &m, &p);
    assert_int_equal(model->load_param(model, m, p, 0, COUNT, got, &found, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "absmax\" is infinite at element 63"));
    dsc_model_close(&model);
}

static void refuses_other_states(void **state)
{
    static const struct {
        const char *text;
        dsc_status status;
        const char *what;
    } cases[] = {
        { "{\"quant_type\": \"fp4\", \"blocksize\": 64, \"shape\": [64, 64]}", DSC_ERR_UNSUPPORTED,
          "\"quant_type\": fp4; what is read: \"nf4\"" },
        { "{\"blocksize\": 64, \"shape\": [64, 64]}", DSC_ERR_UNSUPPORTED, "\"quant_type\": no text" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 128, \"shape\": [64, 64]}", DSC_ERR_UNSUPPORTED,
          "\"blocksize\": 128; what is read: 64" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": \"64\", \"shape\": [64, 64]}", DSC_ERR_UNSUPPORTED,
          "\"blocksize\": -1" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [32, 128]}", DSC_ERR_INPUT,
          "in 4 bits is [32,128], config.json needs [64,64]" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [64, 64, 1]}", DSC_ERR_INPUT, "needs [64,64]" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": 4096}", DSC_ERR_INPUT, "needs [64,64]" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [1e999, 64]}", DSC_ERR_INPUT, "" },
        { "{\"quant_type\": \"nf4\"", DSC_ERR_INPUT, "" },
        { "[1, 2, 3]", DSC_ERR_UNSUPPORTED, "quant_type" },
        { "[[[[[[[[1]]]]]]]]", DSC_ERR_INPUT, "" },
        { "{", DSC_ERR_INPUT, "is no text of at most 4096 bytes" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [64, 64], \"nested_blocksize\": 128}",
          DSC_ERR_UNSUPPORTED, "\"nested_blocksize\": 128; what is read: 256" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [64, 64], \"nested_blocksize\": 256,"
          " \"nested_dtype\": \"float16\"}",
          DSC_ERR_UNSUPPORTED, "what is read: \"float32\"" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [64, 64], \"nested_blocksize\": 256,"
          " \"nested_dtype\": \"float32\", \"nested_offset\": 1e39}",
          DSC_ERR_INPUT, "no finite number" },
        { "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [64, 64], \"nested_blocksize\": 256,"
          " \"nested_dtype\": \"float32\"}",
          DSC_ERR_INPUT, "no finite number" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        folder f;
        make(&f, true);
        drop(&f, Q ".quant_state.bitsandbytes__nf4");
        add_text(&f, cases[i].text);
        expect_refused(&f, cases[i].status, cases[i].what);
    }
}

static void refuses_other_configs(void **state)
{
    static const struct {
        const char *config, *what;
    } cases[] = {
        { CONFIG(", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}"),
          "\"quant_method\": \"gptq\"" },
        { CONFIG(", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}"),
          "without \"load_in_4bit\": true" },
        { QUANTIZED("\"bnb_4bit_quant_type\": \"fp4\""), "\"bnb_4bit_quant_type\": \"fp4\"" },
        { QUANTIZED("\"bnb_4bit_use_double_quant\": true"), "\"bnb_4bit_quant_type\": \"fp4\"" }, /* the default */
        { CONFIG(", \"quantization_config\": 4"), "quantized" },
        { CONFIG(", \"compression_config\": {}"), "compression_config" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        folder f;
        make(&f, true);
        f.config = cases[i].config;
        expect_refused(&f, DSC_ERR_UNSUPPORTED, cases[i].what);
    }
}

static int setup(void **state)
{
    for (int64_t i = 0; i < COUNT; i++)
        numbers[i] = (float)(i * 7919 % 2003 - 1001) / (float)(1 << (13 + i / 64 % 5));
    dsc_nf4_pack(numbers, COUNT, codes, scales);
    dsc_nf4_pack_scales(scales, BLOCKS, scale_codes, tops, &offset);
    return mf_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_bits_and_unpacks),
        cmocka_unit_test(codes_may_have_another_dtype),
        cmocka_unit_test(refuses_missing_and_wrong_parts),
        cmocka_unit_test(refuses_numbers_of_other_codes),
        cmocka_unit_test(refuses_other_states),
        cmocka_unit_test(refuses_other_configs),
    };
    return cmocka_run_group_tests_name("packed weights", tests, setup, mf_teardown);
}
