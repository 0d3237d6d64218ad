/* config.c - `dsc config check|explain|lr|convert`: what a ds_config.json says, resolved.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schedule/schedule.h"
#include "tools/dsc/config_tool.h"

#define STEPS_MOST 100000000 /* lines of `dsc config lr` */

typedef struct config_args {
    const char *path;
    int64_t world_size, steps;
    bool json, strict, markdown;
    dsc_flag_list foreign; /* for the help page of convert */
} config_args;

#define AT(field) offsetof(config_args, field)
#define WORLD_ROW                                                                                 \
    { "--world-size", NULL, "N", DSC_FLAG_INTEGER, AT(world_size), .min = 1, .max = 1 << 20,      \
      .help = "number of ranks, which resolves the batch sizes" }
#define STRICT_ROW { "--strict", NULL, NULL, DSC_FLAG_BOOL, AT(strict), .help = "warnings are errors" }
#define STEPS_ROW(...)                                                                             \
    { "--steps", NULL, "N", DSC_FLAG_INTEGER, AT(steps), .min = 1, .max = STEPS_MOST, __VA_ARGS__ }
#define JSON_ROW { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print one JSON object" }
#define STEPS_HELP "steps of the run, for a schedule that says \"auto\""

static const dsc_flag check_rows[] = { WORLD_ROW, STEPS_ROW(.help = STEPS_HELP), JSON_ROW, STRICT_ROW };
static const dsc_flag explain_rows[] = {
    WORLD_ROW, STEPS_ROW(.help = STEPS_HELP), JSON_ROW, STRICT_ROW,
    { "--markdown", NULL, NULL, DSC_FLAG_BOOL, AT(markdown),
      .help = "without FILE: the keys as the table of the docs" },
};
static const dsc_flag lr_rows[] = { STEPS_ROW(.required = true, .help = "steps to print"), WORLD_ROW, STRICT_ROW };
static const dsc_positional one_file[] = { { "FILE", "the ds_config.json", "file", AT(path), 1, 1 } };
static const dsc_positional file_or_key[] = {
    { "FILE|KEY", "a ds_config.json, or one key such as zero_optimization.stage; default: all keys", "file",
      AT(path), 0, 1 },
};
static const dsc_positional foreign[] = {
    { "ACCELERATE.yaml", "config file of accelerate, or horovodrun and its flags", "file", AT(foreign), 1, 0 },
};
#define EXIT_CODES "0 valid; 2 wrong command line or config, with one line that has the place and the remedy"
static const dsc_flag_command check_page = {
    .name = "dsc config check", .description = "Prints the resolved values of a config, and its warnings.",
    .flags = check_rows, .flag_count = DSC_COUNT(check_rows), .positionals = one_file, .positional_count = 1,
    .exit_codes = EXIT_CODES,
};
static const dsc_flag_command explain_page = {
    .name = "dsc config explain",
    .description = "Prints each key of a config with its value and meaning, or explains keys.",
    .flags = explain_rows, .flag_count = DSC_COUNT(explain_rows), .positionals = file_or_key, .positional_count = 1,
    .exit_codes = EXIT_CODES,
};
static const dsc_flag_command lr_page = {
    .name = "dsc config lr", .description = "Prints the learning rate of each optimizer step, one a line.",
    .flags = lr_rows, .flag_count = DSC_COUNT(lr_rows), .positionals = one_file, .positional_count = 1,
    .exit_codes = EXIT_CODES,
};
static const dsc_flag_command convert_page = {
    .name = "dsc config convert",
    .description = "Prints the ds_config.json that corresponds to a config of accelerate or a horovodrun command.",
    .positionals = foreign, .positional_count = 1, .exit_codes = EXIT_CODES,
};

/* Everything of this version computes on the CPU, unless the file asks for another device. */
static dsc_status load(dsc_alloc *alloc, const config_args *args, dsc_config *config, dsc_error *err)
{
    const dsc_config_facts facts = { args->world_size, 0, args->steps, "cpu" };
    DSC_TRY(dsc_config_load(alloc, args->path, NULL, 0, args->strict, config, err));
    return dsc_config_resolve(config, &facts, err);
}

/* ---- check ---- */

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

/* ---- the subcommands ---- */

typedef int (*config_fn)(dsc_alloc *alloc, const config_args *args, dsc_config *config);

/* With memory for a config, which is too large for a stack. A NULL `run` converts argv. */
static int run_with_config(config_fn run, const config_args *args, int argc, char **argv)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_config *config = NULL;
    int code;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *config, &config, &err) != DSC_OK)
        code = dsc_tool_fail(&err);
    else
        code = run != NULL ? run(alloc, args, config) : dsc_config_tool_convert(alloc, argc, argv, config);
    dsc_alloc_free(alloc, config);
    dsc_alloc_close(&alloc);
    return code;
}

static int parse_and_run(const dsc_flag_command *page, config_fn run, int argc, char **argv)
{
    config_args args = { 0 };
    const int code = dsc_tool_parse(page, argc, argv, &args);
    return code >= 0 ? code : run_with_config(run, &args, 0, NULL);
}

static int run_check(int argc, char **argv) { return parse_and_run(&check_page, config_check, argc, argv); }
static int run_explain(int argc, char **argv) { return parse_and_run(&explain_page, config_explain, argc, argv); }
static int run_lr(int argc, char **argv) { return parse_and_run(&lr_page, config_lr, argc, argv); }

/* Flags of horovodrun are not ours, so only a line without it is parsed here. */
static int run_convert(int argc, char **argv)
{
    const char *file[1];
    config_args args = { .foreign = { file, 0, 1 } };
    if (argc < 2 || strcmp(argv[1], "horovodrun") != 0) {
        if (argc > 2 && argv[1][0] != '-')
            return dsc_tool_usage(argv[2], "one file at a time");
        const int code = dsc_tool_parse(&convert_page, argc, argv, &args);
        if (code >= 0)
            return code;
    }
    return run_with_config(NULL, &args, argc - 1, argv + 1);
}

int dsc_cmd_config(int argc, char **argv)
{
    static const dsc_tool_verb verbs[] = { { &check_page, run_check }, { &explain_page, run_explain },
                                           { &lr_page, run_lr }, { &convert_page, run_convert } };
    return dsc_tool_run_verb("dsc config", "Reads, explains and converts configs.", verbs, (int32_t)DSC_COUNT(verbs),
                             argc, argv);
}
