/* model.c - `dsc model show`: the modules of a model, and the ops of those that are programs; `dsc model list`.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dsc/model.h>

#include "tools/dsc/tool.h"

typedef struct show_args {
    const char *model, *dtype;
    int64_t batch, sequence;
} show_args;

#define AT(field) offsetof(show_args, field)
static const char *const dtypes[] = { "fp32", "bf16", "fp16", NULL };
static const dsc_flag rows[] = {
    { "--batch-size", "--batch", "M", DSC_FLAG_INTEGER, AT(batch), .min = 1, .max = 1 << 20,
      .help = "samples of a micro-batch (default 1)" },
    { "--seq-len", "--seq", "T", DSC_FLAG_INTEGER, AT(sequence), .min = 1, .max = 1 << 24,
      .help = "tokens of a sample (default: the model's own)" },
    { "--dtype", NULL, "NAME", DSC_FLAG_CHOICE, AT(dtype), .choices = dtypes,
      .help = "numbers that it computes with: fp32, bf16 or fp16 (default bf16)" },
};
static const dsc_positional models[] = {
    { "MODEL", "built-in model, folder of a Hugging Face model, or its config as JSON file", "model", AT(model), 1, 1 }
};
static const dsc_flag_command page = {
    .name = "dsc model show",
    .description =
        "Shows the modules of a model: parameters, bytes and FLOPs of a micro-batch; and for blocks that are "
        "programs the ops of each pass, with shapes, what is fused, and where values are kept.",
    .flags = rows,
    .flag_count = DSC_COUNT(rows),
    .positionals = models,
    .positional_count = DSC_COUNT(models),
    .exit_codes = "0 shown; 2 no such model, or not a possible size",
};

static dsc_dtype dtype_of(const show_args *args)
{
    if (args->dtype == NULL || strcmp(args->dtype, "bf16") == 0)
        return DSC_BF16;
    return strcmp(args->dtype, "fp32") == 0 ? DSC_F32 : DSC_F16;
}

static double params_of(const dsc_module *module)
{
    double sum = 0;
    for (int32_t i = 0; i < module->param_count; i++) {
        double elements = 1;
        for (int32_t d = 0; d < module->params[i].dim_count; d++)
            elements *= (double)module->params[i].dim[d];
        sum += module->params[i].shared_module < 0 ? elements : 0;
    }
    return sum;
}

/* A module's text, to be freed; NULL: it has none. */
static char *text_of(const dsc_model *model, int32_t module, const show_args *args)
{
    const dsc_dtype dtype = dtype_of(args);
    const int bytes = model->show_module != NULL ? model->show_module(model, module, args->batch, dtype, NULL, 0) : 0;
    char *text = bytes > 0 ? malloc((size_t)bytes + 1) : NULL;
    if (text != NULL)
        (void)model->show_module(model, module, args->batch, dtype, text, (size_t)bytes + 1);
    return text;
}

static dsc_status show_module(const dsc_module *module, const show_args *args, dsc_error *err)
{
    dsc_module_plan plan;
    DSC_TRY(module->plan(module, args->batch, dtype_of(args), NULL, &plan, err));
    printf("%-10s %12.0f %12lld %12lld %12lld %12lld %12lld %9.3f %9.3f\n", module->name, params_of(module),
           (long long)plan.saved_bytes, (long long)plan.rebuilt_bytes, (long long)plan.repeated_bytes,
           (long long)plan.forward_scratch_bytes, (long long)plan.backward_scratch_bytes, plan.forward_flops * 1e-9,
           plan.backward_flops * 1e-9);
    return DSC_OK;
}

/* Texts of modules that follow each other and are alike are printed once. */
static void show_texts(const dsc_model *model, const show_args *args)
{
    for (int32_t i = 0, last; i < model->module_count; i = last + 1) {
        char *text = text_of(model, i, args), *next = NULL;
        for (last = i; text != NULL && last + 1 < model->module_count; last++) {
            next = text_of(model, last + 1, args);
            const bool alike = next != NULL && strcmp(text, next) == 0;
            free(next);
            if (!alike)
                break;
        }
        if (text != NULL && last > i)
            printf("\n%s to %s\n%s", model->modules[i].name, model->modules[last].name, text);
        else if (text != NULL)
            printf("\n%s\n%s", model->modules[i].name, text);
        free(text);
    }
}

static int show(int argc, char **argv)
{
    show_args args = { .batch = 1 };
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *model = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&page, argc, argv, &args);
    if (code >= 0)
        return code;
    options.seq_length = args.sequence;
    if (dsc_model_open(&model, args.model, &options, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    dsc_status status = DSC_OK;
    if (model->seq_length > 0)
        printf("%s: %lld samples of %lld tokens\n\n", model->name, (long long)args.batch, (long long)model->seq_length);
    else
        printf("%s: %lld samples of \"%s\"\n\n", model->name, (long long)args.batch, model->batch[0].name);
    printf("%-10s %12s %12s %12s %12s %12s %12s %9s %9s\n", "module", "parameters", "saved", "rebuilt", "repeated",
           "forward", "backward", "GFLOP", "GFLOP");
    printf("%-10s %12s %12s %12s %12s %12s %12s %9s %9s\n", "", "", "bytes", "bytes", "bytes", "scratch", "scratch",
           "forward", "backward");
    for (int32_t i = 0; i < model->module_count && status == DSC_OK; i++)
        status = show_module(&model->modules[i], &args, &err);
    if (status == DSC_OK)
        show_texts(model, &args);
    dsc_model_close(&model);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}

static const dsc_flag_command list_page = {
    .name = "dsc model list",
    .description = "Lists the built-in models with their numbers of parameters and tokens. A name gives a fresh model; "
                   "a Hugging Face folder has weights.",
    .exit_codes = "0 listed",
};

static int list(int argc, char **argv)
{
    const char *name = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&list_page, argc, argv, NULL);
    if (code >= 0)
        return code;
    printf("%-24s %15s %10s %10s\n", "model", "parameters", "vocabulary", "tokens");
    for (int32_t i = 0; (name = dsc_model_builtin_name(i)) != NULL; i++) {
        dsc_model *model = NULL;
        double params = 0;
        if (dsc_model_open(&model, name, NULL, &err) != DSC_OK)
            return dsc_tool_fail(&err);
        for (int32_t m = 0; m < model->module_count; m++)
            params += params_of(&model->modules[m]);
        printf("%-24s %15.0f %10lld %10lld\n", name, params, (long long)model->vocab_size,
               (long long)model->seq_length);
        dsc_model_close(&model);
    }
    return dsc_tool_end();
}

int dsc_cmd_model(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = { { &page, show }, { &list_page, list } };
    return dsc_tool_run_verb("dsc model", "Modules, ops and memory of a model; built-in models.", verbs,
                             DSC_COUNT(verbs), argc, argv);
}
