/* config.c - `dsc config check|explain|lr|convert`: what a ds_config.json says, resolved.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "tools/dsc/config_tool.h"

#define STEPS_MOST 100000000 /* lines of `dsc config lr` */

typedef struct config_args {
    const char *path;
    int64_t world_size, steps;
    bool json, strict, markdown;
    int argc; /* what follows the verb, as it was given */
    char **argv;
} config_args;

/* -1: go on; else the exit code. */
static int parse_args(int argc, char **argv, config_args *args)
{
    const char *value;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            args->json = true;
        } else if (strcmp(argv[i], "--strict") == 0) {
            args->strict = true;
        } else if (strcmp(argv[i], "--markdown") == 0) {
            args->markdown = true;
        } else if ((value = dsc_tool_flag("--world-size", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--world-size", value, 1, 1 << 20, &args->world_size))
                return 2;
        } else if ((value = dsc_tool_flag("--steps", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--steps", value, 1, STEPS_MOST, &args->steps))
                return 2;
        } else if (argv[i][0] == '-' && argv[i][1] != 0) {
            return dsc_tool_usage(argv[i], "unknown flag; dsc config takes --world-size N, --json, --strict, "
                                           "--markdown, --steps N");
        } else if (args->path == NULL) {
            args->path = argv[i];
        } else {
            return dsc_tool_usage(argv[i], "one file at a time");
        }
    }
    return -1;
}

/* Everything of this version computes on the CPU, unless the file asks for another device. */
static dsc_status load(dsc_alloc *alloc, const config_args *args, dsc_config *config, dsc_error *err)
{
    const dsc_config_facts facts = { args->world_size, 0, args->steps, "cpu" };
    DSC_TRY(dsc_config_load(alloc, args->path, NULL, 0, args->strict, config, err));
    return dsc_config_resolve(config, &facts, err);
}

/* ---- check ---- */

static void print_count(const char *name, int64_t value, bool left_to_run)
{
    printf(",\"%s\":", name);
    if (value == DSC_AUTO_I64 || left_to_run)
        printf("\"auto\"");
    else
        printf("%lld", (long long)value);
}

static void print_lines(const char *name, const char (*lines)[DSC_CONFIG_LINE], int count)
{
    printf(",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        if (i > 0)
            putchar(',');
        dsc_tool_json_text(lines[i]);
    }
    putchar(']');
}

static void print_name(const char *name, const char *text)
{
    printf(",\"%s\":", name);
    if (*text == 0)
        printf("null");
    else
        dsc_tool_json_text(text);
}

void dsc_config_tool_json(const dsc_config *config)
{
    char number[32];
    const bool batch_auto = (config->auto_mask & DSC_CONFIG_AUTO_BATCH) != 0;
    printf("\"zero_stage\":%d,\"offload_optimizer\":\"%s\",\"offload_param\":\"%s\",\"precision\":\"%s\"",
           config->zero.stage, dsc_config_tool_offload(config->zero.optimizer_named),
           dsc_config_tool_offload(config->zero.param_named),
           config->auto_mask & DSC_CONFIG_AUTO_PRECISION ? "auto" : dsc_config_tool_precision(config));
    print_count("train_batch_size", config->train_batch_size, batch_auto);
    print_count("train_micro_batch_size_per_gpu", config->train_micro_batch_size_per_gpu, batch_auto);
    print_count("gradient_accumulation_steps", config->gradient_accumulation_steps,
                batch_auto && config->given.gradient_accumulation_steps == DSC_AUTO_I64);
    print_name("optimizer", config->optimizer.type);
    print_name("scheduler", config->schedule.type);
    printf(",\"gradient_clipping\":%s", config->auto_mask & DSC_CONFIG_AUTO_CLIPPING
                                            ? "\"auto\""
                                            : dsc_tool_double(config->gradient_clipping, number));
    print_lines("warnings", config->warnings, config->warning_count);
    print_lines("notes", config->notes, config->note_count);
}

static void print_batch(const dsc_config *config, int64_t world_size)
{
    const int64_t value[3] = { config->train_batch_size, config->train_micro_batch_size_per_gpu,
                               config->gradient_accumulation_steps };
    char text[3][32];
    for (int i = 0; i < 3; i++) {
        if (value[i] == DSC_AUTO_I64)
            snprintf(text[i], sizeof text[i], "?");
        else
            snprintf(text[i], sizeof text[i], "%lld", (long long)value[i]);
    }
    printf("  batch              %s = %s per rank * %s accumulated * ", text[0], text[1], text[2]);
    if (world_size > 0)
        printf("%lld ranks\n", (long long)world_size);
    else
        printf("ranks (--world-size says how many)\n");
}

static void print_text(const dsc_config *config, const config_args *args)
{
    printf("%s: valid\n", args->path);
    if (config->unbuilt.status != DSC_OK)
        printf("  not run by this version: %s\n", config->unbuilt.message);
    printf("  zero stage         %d\n", config->zero.stage);
    printf("  offload            optimizer %s, parameters %s\n",
           dsc_config_tool_offload(config->zero.optimizer_named),
           dsc_config_tool_offload(config->zero.param_named));
    printf("  precision          %s\n", dsc_config_tool_precision(config));
    print_batch(config, args->world_size);
    printf("  optimizer          %s, lr %g\n",
           *config->optimizer.type != 0 ? config->optimizer.type : "AdamW (none given)", config->optimizer.lr);
    printf("  scheduler          %s\n", *config->schedule.type != 0 ? config->schedule.type : "none");
    printf("  gradient_clipping  %g\n", config->gradient_clipping);
    for (int i = 0; i < config->note_count; i++)
        printf("  note: %s\n", config->notes[i]);
}

static int config_check(dsc_alloc *alloc, const config_args *args, dsc_config *config)
{
    dsc_error err = DSC_ERROR_INIT;
    if (args->path == NULL)
        return dsc_tool_usage("dsc config check", "FILE is missing");
    if (load(alloc, args, config, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (args->json) {
        putchar('{');
        dsc_config_tool_json(config);
        printf("}\n");
        return dsc_tool_end();
    }
    print_text(config, args);
    for (int i = 0; i < config->warning_count; i++)
        fprintf(stderr, "dsc: warning: %s: %s\n", args->path, config->warnings[i]);
    return dsc_tool_end();
}

/* ---- lr ---- */

/* Rates do not depend on batch sizes, so a file without them, or for another number of ranks, has rates too. */
static dsc_status load_rates(dsc_alloc *alloc, const config_args *args, dsc_config *config, dsc_error *err)
{
    static const dsc_config_override one_sample = { "train_micro_batch_size_per_gpu", "1", "dsc config lr" };
    const dsc_config_facts facts = { args->world_size, 0, args->steps, "cpu" };
    DSC_TRY(dsc_config_load(alloc, args->path, &one_sample, 1, args->strict, config, err));
    return dsc_config_resolve(config, &facts, err);
}

static int config_lr(dsc_alloc *alloc, const config_args *args, dsc_config *config)
{
    dsc_error err = DSC_ERROR_INIT;
    char number[32];
    if (args->path == NULL || args->steps == 0)
        return dsc_tool_usage("dsc config lr", "%s is missing", args->path == NULL ? "FILE" : "--steps N");
    if (load_rates(alloc, args, config, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (config->schedule.kind == DSC_SCHEDULE_NONE && *config->schedule.type != 0)
        return dsc_tool_usage("scheduler.type", "\"%s\" is not supported in this version", config->schedule.type);
    for (int i = 0; i < config->warning_count; i++)
        fprintf(stderr, "dsc: warning: %s: %s\n", args->path, config->warnings[i]);
    for (int64_t step = 1; step <= args->steps && !ferror(stdout); step++)
        printf("%s\n", dsc_tool_double(dsc_schedule_lr(config, step), number));
    return dsc_tool_end();
}

/* ---- explain ---- */

static int config_explain(dsc_alloc *alloc, const config_args *args, dsc_config *config)
{
    dsc_error err = DSC_ERROR_INIT;
    if (args->path == NULL)
        return dsc_config_tool_keys(args->markdown);
    if (dsc_config_tool_is_key(args->path))
        return dsc_config_tool_key(args->path);
    if (load(alloc, args, config, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    dsc_json *file = NULL;
    if (dsc_config_tool_open(alloc, args->path, &file, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    const int code = dsc_config_tool_values(config, file, args->json);
    dsc_json_close(&file);
    return code;
}

/* ---- convert ---- */

static int config_convert(dsc_alloc *alloc, const config_args *args, dsc_config *config)
{
    if (args->argc == 0)
        return dsc_tool_usage("dsc config convert", "accelerate's FILE, or horovodrun and its flags, is missing");
    if (args->argc > 1 && strcmp(args->argv[0], "horovodrun") != 0)
        return dsc_tool_usage(args->argv[1], "one file at a time");
    return dsc_config_tool_convert(alloc, args->argc, args->argv, config);
}

int dsc_cmd_config(int argc, char **argv)
{
    static const struct { const char *name; int (*run)(dsc_alloc *, const config_args *, dsc_config *); } verbs[] = {
        { "check", config_check }, { "explain", config_explain }, { "lr", config_lr },
        { "convert", config_convert },
    };
    const char *usage =
        "dsc config check|explain FILE [--world-size N] [--json] [--strict], "
        "dsc config lr FILE --steps N [--world-size N], dsc config explain [KEY] [--markdown], "
        "dsc config convert ACCELERATE.yaml | horovodrun FLAGS...";
    config_args args = { 0 };
    if (argc < 2)
        return dsc_tool_usage("dsc config", "check, explain, lr or convert is missing; usage: %s", usage);
    if (strcmp(argv[1], "--help") == 0) {
        printf("usage: %s\n", usage);
        return dsc_tool_end();
    }
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_alloc *alloc = NULL;
        dsc_config *config = NULL;
        if (strcmp(verbs[i].name, argv[1]) != 0)
            continue;
        const bool converts = verbs[i].run == config_convert;
        int code = converts ? -1 : parse_args(argc - 1, argv + 1, &args);
        args.argc = argc - 2;
        args.argv = argv + 2;
        if (code >= 0)
            return code;
        if (dsc_alloc_open(&alloc, &err) != DSC_OK)
            return dsc_tool_fail(&err);
        if (dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, &err) != DSC_OK)
            code = dsc_tool_fail(&err);
        else
            code = verbs[i].run(alloc, &args, config);
        dsc_alloc_free(alloc, config);
        dsc_alloc_close(&alloc);
        return code;
    }
    return dsc_tool_usage(argv[1], "unknown; usage: %s", usage);
}
