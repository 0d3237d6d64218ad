/* model_folder.c - see model_folder.h. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/support/model_folder.h"

char mf_dir[64];
float mf_head_value = 1;
static dsc_alloc *mf_alloc;

int mf_setup(void **state)
{
    snprintf(mf_dir, sizeof mf_dir, "/tmp/dsc_model_XXXXXX");
    return mkdtemp(mf_dir) == NULL || dsc_alloc_open(&mf_alloc, NULL) != DSC_OK;
}

int mf_teardown(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_status status = dsc_io_remove_dir(NULL, mf_dir, &err);
    dsc_alloc_close(&mf_alloc);
    return status != DSC_OK;
}

const char *mf_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", mf_dir, name);
    return path;
}

void mf_empty(void)
{
    assert_int_equal(dsc_io_remove_dir(NULL, mf_dir, NULL), DSC_OK);
    assert_int_equal(dsc_io_mkdir(NULL, mf_dir, NULL), DSC_OK);
}

void mf_write(const char *name, const char *text)
{
    FILE *f = fopen(mf_path(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

void mf_write_tensors(const char *name, const dsc_safetensors_spec *specs, int64_t count)
{
    dsc_safetensors_plan plan = { 0 };
    dsc_error err = DSC_ERROR_INIT;
    dsc_file file = DSC_FILE_INIT;
    if (dsc_safetensors_plan_open(&plan, mf_alloc, specs, count, NULL, 0, &err) != DSC_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dsc_io_open(NULL, mf_path(name), DSC_IO_CREATE, &file, &err), DSC_OK);
    assert_int_equal(dsc_safetensors_write_header(&plan, NULL, &file, &err), DSC_OK);
    for (int64_t i = 0; i < count; i++) {
        const float x = strcmp(specs[i].name, "lm_head.weight") == 0 ? mf_head_value : (float)(i + 1);
        if (specs[i].desc.dtype == DSC_F32)
            assert_int_equal(dsc_io_write(NULL, &file, &x, 4, plan.offset[i], &err), DSC_OK);
    }
    assert_int_equal(dsc_io_close(NULL, &file, &err), DSC_OK);
    dsc_safetensors_plan_close(&plan);
}

void mf_tiny_specs(dsc_safetensors_spec specs[MF_TINY_COUNT + 2])
{
    const dsc_safetensors_spec all[MF_TINY_COUNT] = {
        { "transformer.wte.weight", { DSC_F32, 2, { 11, 6 } } },
        { "transformer.wpe.weight", { DSC_F32, 2, { 5, 6 } } },
        { "transformer.h.0.ln_1.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_1.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.attn.c_attn.weight", { DSC_F32, 2, { 6, 18 } } },
        { "transformer.h.0.attn.c_attn.bias", { DSC_F32, 1, { 18 } } },
        { "transformer.h.0.attn.c_proj.weight", { DSC_F32, 2, { 6, 6 } } },
        { "transformer.h.0.attn.c_proj.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_2.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.ln_2.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.h.0.mlp.c_fc.weight", { DSC_F32, 2, { 6, 24 } } },
        { "transformer.h.0.mlp.c_fc.bias", { DSC_F32, 1, { 24 } } },
        { "transformer.h.0.mlp.c_proj.weight", { DSC_F32, 2, { 24, 6 } } },
        { "transformer.h.0.mlp.c_proj.bias", { DSC_F32, 1, { 6 } } },
        { "transformer.ln_f.weight", { DSC_F32, 1, { 6 } } },
        { "transformer.ln_f.bias", { DSC_F32, 1, { 6 } } },
    };
    memcpy(specs, all, sizeof all);
}

void mf_write_tiny(void)
{
    dsc_safetensors_spec specs[MF_TINY_COUNT + 2];
    mf_tiny_specs(specs);
    mf_empty();
    mf_write("config.json", "{" MF_TINY ", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0.0}");
    mf_write_tensors("model.safetensors", specs, MF_TINY_COUNT);
}

dsc_model *mf_open(const char *name, const dsc_model_options *options)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[800];
    if (dsc_model_open(&model, name, options, &err) != DSC_OK)
        fail_msg("%s: %s", name, dsc_error_format(&err, text, sizeof text));
    if (dsc_model_check(model, &err) != DSC_OK)
        fail_msg("%s: %s", name, dsc_error_format(&err, text, sizeof text));
    return model;
}

void mf_expect_refusal(const char *name, const dsc_model_options *options, dsc_status status, const char *what)
{
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    char text[800];
    const dsc_status got = dsc_model_open(&model, name, options, &err);
    dsc_error_format(&err, text, sizeof text);
    if (got != status || strstr(text, what) == NULL)
        fail_msg("%s: expected status %d with \"%s\", got %d: \"%s\"", name, (int)status, what, (int)got, text);
    assert_null(model);
}

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t n = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        n *= spec->dim[i];
    return n;
}

int64_t mf_elements(const dsc_model *model)
{
    int64_t n = 0;
    for (int32_t m = 0; m < model->module_count; m++)
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (model->modules[m].params[p].shared_module < 0)
                n += elements_of(&model->modules[m].params[p]);
    return n;
}
