/* ckpt_export.c - `dsc ckpt export DIR/step-N --out FOLDER`: a Hugging Face folder of the weights, or of the
 * adapters as PEFT has it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/dsc/ckpt.h"

typedef struct export_args {
    const char *dir;
    dsc_ckpt_export_options options;
} export_args;

/* "5GB", "800MiB", "4096": bytes; MB is 10^6 as in Hugging Face's max_shard_size, MiB 2^20. */
static dsc_status set_shard_size(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    static const struct { const char *name; int64_t bytes; } units[] = {
        { "", 1 },           { "KB", 1000 },         { "MB", 1000000 },       { "GB", 1000000000 },
        { "KiB", 1 << 10 },  { "MiB", 1 << 20 },     { "GiB", 1 << 30 },
    };
    char *end;
    const long long count = strtoll(text, &end, 10);
    for (size_t u = 0; u < DSC_COUNT(units); u++)
        if (end != text && count > 0 && count < 1000000000 && strcmp(end, units[u].name) == 0) {
            ((export_args *)out)->options.shard_bytes = count * units[u].bytes;
            return DSC_OK;
        }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not a size; expected a number of bytes, "
                    "KB, MB, GB, KiB, MiB or GiB, such as 5GB or 800MiB", text);
}

static dsc_status set_dtype(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    static const dsc_dtype dtypes[] = { DSC_F32, DSC_BF16, DSC_F16 };
    for (size_t d = 0; d < DSC_COUNT(dtypes); d++)
        if (strcmp(text, dsc_dtype_text(dtypes[d])) == 0) {
            ((export_args *)out)->options.dtype = dtypes[d];
            return DSC_OK;
        }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is unknown; expected fp32, bf16 or fp16", text);
}

static dsc_status set_nf4(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    const bool nested = strcmp(text, "double") == 0;
    if (!nested && strcmp(text, "single") != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is unknown; expected double or single", text);
    ((export_args *)out)->options.nf4 = nested ? DSC_NF4_NESTED : DSC_NF4_PLAIN;
    return DSC_OK;
}

#define AT(field) offsetof(export_args, field)
static const dsc_flag rows[] = {
    { "--out", NULL, "FOLDER", DSC_FLAG_TEXT, AT(options.out_dir), .required = true, .help = "folder to write" },
    { "--dtype", NULL, "NAME", DSC_FLAG_CALL, 0, .set = set_dtype,
      .help = "dtype of the weights: fp32, bf16 or fp16; default: that of the checkpoint" },
    { "--shard-size", NULL, "SIZE", DSC_FLAG_CALL, 0, .set = set_shard_size,
      .help = "largest *.safetensors file, such as 800MB (10^6 bytes) or 800MiB (2^20); default 5GB" },
    { "--merge", NULL, NULL, DSC_FLAG_BOOL, AT(options.merge), .help = "add LoRA adapters to the weights" },
    { "--ema", NULL, NULL, DSC_FLAG_BOOL, AT(options.averages),
      .help = "the moving averages of dsc.ema instead of the weights" },
    { "--nf4", NULL, "SCALES", DSC_FLAG_CALL, 0, .set = set_nf4,
      .help = "weights of blocks in 4 bits, as bitsandbytes has them: scales in 8 bits (double) or 32 (single)" },
};
static const dsc_positional dirs[] = { { "DIR/step-N", "the checkpoint", "checkpoint", AT(dir), 1, 1 } };
const dsc_flag_command dsc_tool_ckpt_export_page = {
    .name = "dsc ckpt export",
    .description =
        "Writes the weights as a Hugging Face folder, or LoRA adapters as a folder of PEFT; with the tokenizer.",
    .flags = rows,
    .flag_count = DSC_COUNT(rows),
    .positionals = dirs,
    .positional_count = 1,
    .exit_codes = "0 done; 1 failed; 2 wrong command line, or no whole checkpoint",
};

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
    export_args args = { .options = { .dtype = DSC_DTYPE_COUNT, .shard_bytes = INT64_C(5000000000) } };
    const int wrong = dsc_tool_parse(&dsc_tool_ckpt_export_page, argc, argv, &args);
    if (wrong >= 0)
        return wrong;
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const dsc_status status = run(alloc, args.dir, &args.options, &err);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
