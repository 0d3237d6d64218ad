/* plan.c - `dsc plan`: what a run would take of every rank's memory, before anything is started.
 *
 * The numbers are the engine's own: the same planner that `train` obeys, stopped after planning.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dsc/dsc.h>

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "engine/internal.h"
#include "tools/dsc/tool.h"

#define ROWS_MAX 64
#define MB 1048576.0

typedef struct plan_args {
    const char *config, *model;
    int64_t world_size; /* 0: the environment's, else 1 */
    bool json, strict;
} plan_args;

typedef struct plan_table {
    dsc_plan_row row[ROWS_MAX];
    int32_t row_count;
    int64_t states_bytes, work_bytes, nvme_bytes; /* of memory, and of files */
    int64_t ranks, needed_bytes, free_bytes; /* of all ranks together; INT64_MAX: unknown */
    int64_t parameter_count, trainable_count;
    dsc_run_info info;
} plan_table;

static const char *const usage = "dsc plan --config FILE [--model NAME|DIR] [--world-size N] [--json] [--strict]";

/* -1: go on; else the exit code. */
static int parse_args(int argc, char **argv, plan_args *args)
{
    const char *value;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            args->json = true;
        } else if (strcmp(argv[i], "--strict") == 0) {
            args->strict = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            printf("usage: %s\n", usage);
            return dsc_tool_end();
        } else if ((value = dsc_tool_flag("--config", argc, argv, &i)) != NULL) {
            args->config = value;
        } else if ((value = dsc_tool_flag("--model", argc, argv, &i)) != NULL) {
            if (*value == 0)
                return dsc_tool_usage("--model", "no value; usage: %s", usage);
            args->model = value;
        } else if ((value = dsc_tool_flag("--world-size", argc, argv, &i)) != NULL) {
            if (!dsc_tool_number("--world-size", value, 1, 1 << 20, &args->world_size))
                return 2;
        } else {
            return dsc_tool_usage(argv[i], "unknown %s; usage: %s", argv[i][0] == '-' ? "flag" : "argument", usage);
        }
    }
    if (args->config == NULL || *args->config == 0)
        return dsc_tool_usage("dsc plan", "--config FILE is missing; usage: %s", usage);
    return -1;
}

/* Warnings only: notes are in the resolved values that the table's head shows (`dsc config explain` has all). */
static void log_line(void *user, dsc_log_level level, const char *text)
{
    if (level <= DSC_LOG_WARNING)
        fprintf(stderr, "dsc: warning: %s\n", text);
}

static dsc_status open_planner(const plan_args *args, dsc_engine **out, dsc_error *err)
{
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    char quoted[8192];
    const dsc_override model = { "dsc.model", quoted, "--model" };
    if (args->model != NULL) {
        if (dsc_json_quote(quoted, sizeof quoted, args->model) >= sizeof quoted)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--model", "the name is too long");
        options.overrides = &model;
        options.override_count = 1;
    }
    options.config_path = args->config;
    options.flags = DSC_ENGINE_PLAN_ONLY | (args->strict ? (uint32_t)DSC_ENGINE_STRICT : 0);
    options.plan_world_size = (int32_t)args->world_size;
    options.log = (dsc_log){ log_line, NULL };
    return dsc_engine_open(out, &options, err);
}

/* What the formulas of ZeRO are about; the rest depends on the batch and the machine. */
static bool is_state(const dsc_plan_row *row)
{
    static const dsc_tag states[] = { DSC_TAG_PARAM, DSC_TAG_GRAD, DSC_TAG_MASTER, DSC_TAG_MOMENT };
    for (size_t i = 0; i < DSC_COUNT(states); i++)
        if (strcmp(row->tag, dsc_tag_text(states[i])) == 0)
            return true;
    return false;
}

static bool is_nvme(const dsc_plan_row *row) { return strcmp(row->tier, dsc_tier_text(DSC_TIER_NVME)) == 0; }

static dsc_status read_table(dsc_engine *engine, plan_table *out, dsc_error *err)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    *out = (plan_table){ .ranks = dsc_engine_size(engine), .info.struct_bytes = sizeof out->info };
    dsc_engine_run_info(engine, &out->info);
    dsc_engine_stats_get(engine, &stats);
    out->parameter_count = stats.parameter_count;
    out->trainable_count = stats.trainable_count;
    const int32_t count = dsc_engine_plan_row_count(engine);
    DSC_ASSERT(count <= ROWS_MAX);
    for (int32_t i = 0; i < count; i++) {
        dsc_plan_row row;
        DSC_TRY(dsc_engine_plan_row(engine, i, &row, err));
        if (row.planned_bytes == 0)
            continue;
        out->row[out->row_count++] = row;
        *(is_nvme(&row) ? &out->nvme_bytes : is_state(&row) ? &out->states_bytes : &out->work_bytes) +=
            row.planned_bytes;
    }
    out->free_bytes = engine->host_free_bytes;
    if (!dsc_mul_i64(out->states_bytes + out->work_bytes, out->ranks, &out->needed_bytes))
        out->needed_bytes = INT64_MAX;
    return DSC_OK;
}

/* ---- printing ---- */

static void print_line(const char *tag, const char *tier, int64_t bytes)
{
    printf("  %-20s %-7s %16lld %12.2f\n", tag, tier, (long long)bytes, (double)bytes / MB);
}

static void print_part(const plan_table *t, bool states, const char *sum)
{
    for (int32_t i = 0; i < t->row_count; i++)
        if (is_state(&t->row[i]) == states && !is_nvme(&t->row[i]))
            print_line(t->row[i].tag, t->row[i].tier, t->row[i].planned_bytes);
    print_line(sum, "", states ? t->states_bytes : t->work_bytes);
}

static void print_verdict(const plan_table *t)
{
    const double each = (double)(t->states_bytes + t->work_bytes) / MB, needed = (double)t->needed_bytes / MB;
    const char *s = t->ranks == 1 ? "" : "s";
    if (t->free_bytes == INT64_MAX)
        printf("free memory of this machine: unknown; %lld rank%s x %.2f MB = %.2f MB\n", (long long)t->ranks, s, each,
               needed);
    else if (t->needed_bytes <= t->free_bytes)
        printf("fits this machine: %lld rank%s x %.2f MB = %.2f MB of %.2f MB free\n", (long long)t->ranks, s,
               each, needed, (double)t->free_bytes / MB);
    else
        printf("does not fit this machine: %lld rank%s x %.2f MB = %.2f MB, %.2f MB free\n", (long long)t->ranks, s,
               each, needed, (double)t->free_bytes / MB);
}

static void print_text(const plan_table *t)
{
    const char *s = t->ranks == 1 ? "" : "s";
    printf("%s: %.2f M parameters, %lld rank%s, ZeRO stage %d%s\n", t->info.model_name,
           (double)t->parameter_count * 1e-6, (long long)t->ranks, s, (int)t->info.zero_stage,
           t->info.recompute ? ", recomputation" : "");
    printf("batch %lld = micro-batch %lld x accumulation %lld x %lld rank%s; %lld tokens a sample\n",
           (long long)t->info.train_batch_size, (long long)t->info.micro_batch_size,
           (long long)t->info.accumulation_steps, (long long)t->ranks, s, (long long)t->info.seq_length);
    printf("numerics: %s\n", t->info.numerics);
    printf("each rank:             tier               bytes           MB\n");
    print_part(t, true, "model states");
    print_part(t, false, "working memory");
    print_line("total", "", t->states_bytes + t->work_bytes);
    for (int32_t i = 0; i < t->row_count; i++)
        if (is_nvme(&t->row[i]))
            print_line(t->row[i].tag, t->row[i].tier, t->row[i].planned_bytes);
    if (t->nvme_bytes > 0)
        print_line("files", "", t->nvme_bytes);
    print_verdict(t);
}

static void print_count(const char *name, int64_t value) { printf(",\"%s\":%lld", name, (long long)value); }

static void print_json(const plan_table *t)
{
    printf("{\"model\":");
    dsc_tool_json_text(t->info.model_name);
    print_count("world_size", t->ranks);
    print_count("zero_stage", t->info.zero_stage);
    print_count("parameters", t->parameter_count);
    print_count("trainable", t->trainable_count);
    print_count("train_batch_size", t->info.train_batch_size);
    print_count("train_micro_batch_size_per_gpu", t->info.micro_batch_size);
    print_count("gradient_accumulation_steps", t->info.accumulation_steps);
    print_count("seq_length", t->info.seq_length);
    printf(",\"numerics\":");
    dsc_tool_json_text(t->info.numerics);
    printf(",\"per_rank\":[");
    for (int32_t i = 0; i < t->row_count; i++)
        printf("%s{\"tag\":\"%s\",\"tier\":\"%s\",\"model_state\":%s,\"bytes\":%lld}", i > 0 ? "," : "",
               t->row[i].tag, t->row[i].tier, is_state(&t->row[i]) ? "true" : "false",
               (long long)t->row[i].planned_bytes);
    printf("]");
    print_count("model_states_bytes", t->states_bytes);
    print_count("working_bytes", t->work_bytes);
    print_count("total_bytes", t->states_bytes + t->work_bytes);
    print_count("nvme_bytes", t->nvme_bytes);
    print_count("all_ranks_bytes", t->needed_bytes);
    if (t->free_bytes == INT64_MAX)
        printf(",\"free_bytes\":null,\"fits\":null}\n");
    else
        printf(",\"free_bytes\":%lld,\"fits\":%s}\n", (long long)t->free_bytes,
               t->needed_bytes <= t->free_bytes ? "true" : "false");
}

/* The table comes first: it is the answer also when it is meant for another machine than this one. */
int dsc_cmd_plan(int argc, char **argv)
{
    plan_args args = { 0 };
    plan_table table;
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int code = parse_args(argc, argv, &args);
    if (code >= 0)
        return code;
    dsc_status status = open_planner(&args, &engine, &err);
    if (status == DSC_OK)
        status = read_table(engine, &table, &err);
    if (status == DSC_OK)
        (args.json ? print_json : print_text)(&table);
    const int printed = status == DSC_OK ? dsc_tool_end() : 0;
    if (status == DSC_OK)
        status = dsc_engine_check_fit(engine, &err);
    dsc_engine_close(&engine);
    return printed != 0 ? printed : status == DSC_OK ? 0 : dsc_tool_fail(&err);
}
