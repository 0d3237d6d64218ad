/* ckpt_export.c - `dsc ckpt export DIR/step-N --out FOLDER`: a Hugging Face folder of the weights, or of the
 * adapters as PEFT has it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

static const char usage[] = "dsc ckpt export DIR/step-N --out FOLDER [--dtype fp32|bf16|fp16] [--shard-size 5GB] "
                            "[--merge]";

/* "5GB", "800MB", "4096": bytes, decimal units as in Hugging Face's max_shard_size. */
static bool parse_size(const char *text, int64_t *out)
{
    static const struct { const char *name; int64_t bytes; } units[] = { { "", 1 }, { "KB", 1000 }, { "MB", 1000000 },
                                                                         { "GB", 1000000000 } };
    char *end;
    const long long count = strtoll(text, &end, 10);
    for (size_t u = 0; u < DSC_COUNT(units); u++)
        if (end != text && count > 0 && count < 1000000000 && strcmp(end, units[u].name) == 0) {
            *out = count * units[u].bytes;
            return true;
        }
    (void)dsc_tool_usage("--shard-size", "\"%.40s\" is no size; expected something like 5GB or 800MB", text);
    return false;
}

static int parse(int argc, char **argv, const char **dir, dsc_ckpt_export_options *options)
{
    for (int i = 2; i < argc; i++) {
        const char *out = dsc_tool_flag("--out", argc, argv, &i);
        const char *dtype = out == NULL ? dsc_tool_flag("--dtype", argc, argv, &i) : NULL;
        const char *size = out == NULL && dtype == NULL ? dsc_tool_flag("--shard-size", argc, argv, &i) : NULL;
        if (out != NULL) {
            options->out_dir = out;
        } else if (dtype != NULL) {
            static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
            options->dtype = DSC_DTYPE_COUNT;
            for (size_t d = 0; d < DSC_COUNT(dtypes); d++)
                if (strcmp(dtype, dsc_dtype_text(dtypes[d])) == 0)
                    options->dtype = dtypes[d];
            if (options->dtype == DSC_DTYPE_COUNT)
                return dsc_tool_usage("--dtype", "\"%.40s\" is none of fp32, bf16 and fp16", dtype);
        } else if (size != NULL) {
            if (!parse_size(size, &options->shard_bytes))
                return 2;
        } else if (strcmp(argv[i], "--merge") == 0) {
            options->merge = true;
        } else if (argv[i][0] == '-') {
            return dsc_tool_usage(argv[i], "unknown flag; usage: %s", usage);
        } else if (*dir != NULL) {
            return dsc_tool_usage(argv[i], "one checkpoint at a time; usage: %s", usage);
        } else {
            *dir = argv[i];
        }
    }
    if (*dir == NULL || (*dir)[0] == 0)
        return dsc_tool_usage("export", "DIR is missing; usage: %s", usage);
    if (options->out_dir == NULL || options->out_dir[0] == 0)
        return dsc_tool_usage("--out", "no folder to write to; usage: %s", usage);
    return 0;
}

static dsc_status run(dsc_alloc *alloc, const char *dir, const dsc_ckpt_export_options *options, dsc_error *err)
{
    char step_dir[CKPT_TOOL_PATH_BYTES], config[CKPT_TOOL_PATH_BYTES];
    DSC_TRY(dsc_ckpt_find(NULL, alloc, dir, step_dir, sizeof step_dir, err));
    DSC_TRY(dsc_ckpt_export(NULL, alloc, step_dir, options, err));
    DSC_TRY(dsc_path_join(config, sizeof config, options->out_dir, "adapter_config.json", err));
    const bool adapters = dsc_io_kind(config) == DSC_PATH_FILE;
    printf("%s: %s of %s\n", options->out_dir, adapters ? "adapters" : "weights", step_dir);
    DSC_TRY(dsc_path_join(config, sizeof config, options->out_dir, "config.json", err));
    if (!adapters && dsc_io_kind(config) == DSC_PATH_MISSING)
        printf("no config.json: this model had none\n");
    return DSC_OK;
}

int dsc_tool_ckpt_export(int argc, char **argv)
{
    dsc_ckpt_export_options options = { .dtype = DSC_DTYPE_COUNT, .shard_bytes = INT64_C(5000000000) };
    const char *dir = NULL;
    const int wrong = parse(argc, argv, &dir, &options);
    if (wrong != 0)
        return wrong;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = run(alloc, dir, &options, &err);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
