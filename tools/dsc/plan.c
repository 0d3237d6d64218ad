/* plan.c - `dsc plan`: what a run would take of every rank's memory, before anything is started.
 *
 * The numbers are the engine's own: the same planner that `train` obeys, stopped after planning.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dsc/dsc.h>

#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/planned.h"
#include "tools/dsc/gpu_cards.h"
#include "tools/dsc/plan_card.h"
#include "tools/dsc/plan_grid.h"
#include "tools/dsc/plan_speed.h"
#include "tools/dsc/tool.h"
#include "tools/strategies.h"

#define ROWS_MAX 64
#define MIB 1048576.0

typedef struct plan_args {
    const char *config, *model, *device; /* NULL: the config's */
    int64_t world_size; /* 0: the environment's, else 1 */
    int64_t gpu_bytes;  /* memory of a GPU that may be absent; 0: this machine's */
    const char *card;   /* its name; NULL: not given */
    bool json, strict, time, compare;
} plan_args;

typedef struct plan_table {
    dsc_plan_row row[ROWS_MAX];
    int32_t row_count;
    int64_t states_bytes, work_bytes, nvme_bytes; /* bytes in memory, and in files */
    int64_t data_ranks;                           /* of a stage */
    int64_t ranks, needed_bytes, free_bytes; /* host memory of all ranks together; INT64_MAX: unknown */
    bool on_gpus;
    int64_t gpu_bytes, gpu_free_bytes; /* memory of each rank's GPU */
    int64_t parameter_count, trainable_count;
    dsc_run_info info;
    dsc_zero_traffic traffic;
    dsc_zero_kept kept;
    bool prefetch_held;
    bool timed;
    plan_speed speed;
    plan_time time;
    bool card_timed;
    plan_card card;
    plan_card_time card_time;
} plan_table;

static dsc_status set_card(void *out, const dsc_flag *flag, const char *name, dsc_error *err)
{
    char names[512];
    ((plan_args *)out)->card = name;
    if (dsc_gpu_card_bytes(name, &((plan_args *)out)->gpu_bytes))
        return DSC_OK;
    dsc_gpu_card_names(names, sizeof names);
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.60s\" is unknown; expected one of %s; --gpu-memory 80GiB "
                    "plans for any other card", name, names);
}

static dsc_status set_gpu_memory(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    if (dsc_gpu_memory_bytes(text, &((plan_args *)out)->gpu_bytes))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not a memory size of a card; expected more than "
                    "1.5GiB, such as 80GiB (GB is 10^9 bytes, GiB and G are 2^30)", text);
}

#define AT(field) offsetof(plan_args, field)
static const char *const devices[] = { "auto", "cpu", "cuda", NULL };
static const dsc_flag rows[] = {
    { "--config", NULL, "FILE", DSC_FLAG_TEXT, AT(config), .required = true, .help = "the ds_config.json" },
    { "--model", NULL, "NAME|DIR", DSC_FLAG_TEXT, AT(model),
      .help = "built-in model or model folder; default: the config's dsc.model" },
    { "--world-size", NULL, "N", DSC_FLAG_INTEGER, AT(world_size), .min = 1, .max = 1 << 20,
      .help = "number of ranks; default: the environment's, else 1" },
    { "--device", NULL, "NAME", DSC_FLAG_CHOICE, AT(device), .choices = devices,
      .help = "auto, cpu or cuda; default: the config's" },
    { "--gpu", NULL, "CARD", DSC_FLAG_CALL, 0, .set = set_card,
      .help = "plan for this card, such as H100, which need not be in this machine" },
    { "--gpu-memory", NULL, "SIZE", DSC_FLAG_CALL, 0, .set = set_gpu_memory,
      .help = "plan for a card with this memory, such as 80GiB; GB is 10^9 bytes, GiB 2^30" },
    { "--time", NULL, NULL, DSC_FLAG_BOOL, AT(time),
      .help = "estimate the time of a step: measures this machine for a moment, or with --gpu takes the card's rates" },
    { "--compare", NULL, NULL, DSC_FLAG_BOOL, AT(compare), .help = "plan the other strategies too, one line each" },
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print one JSON object" },
    { "--strict", NULL, NULL, DSC_FLAG_BOOL, AT(strict), .help = "warnings of the config are errors" },
};
static const dsc_flag_command page = {
    .name = "dsc plan",
    .description = "Prints the bytes that a run needs by tag, tier and rank. Allocates and starts nothing.",
    .flags = rows, .flag_count = DSC_COUNT(rows),
    .exit_codes = "0 the plan fits; 1 failed; 2 wrong command line, config or model; 3 the plan does not fit",
};

/* -1: go on; else the exit code. */
static int parse_args(int argc, char **argv, plan_args *args)
{
    const int code = dsc_tool_parse(&page, argc, argv, args);
    if (code >= 0)
        return code;
    if (args->gpu_bytes > 0 && args->device != NULL && strcmp(args->device, "cpu") == 0)
        return dsc_tool_usage("--device", "\"cpu\", but a GPU is described; leave one of them out");
    if (args->gpu_bytes > 0 && args->time && args->card == NULL)
        return dsc_tool_usage("--time", "it needs the rates of a card, and only --gpu-memory is given; name the card "
                                        "with --gpu");
    return -1;
}

/* Warnings only: notes are in the resolved values that the table's head shows (`dsc config explain` has all). */
static void log_line(void *user, dsc_log_level level, const char *text)
{
    if (level <= DSC_LOG_WARNING)
        fprintf(stderr, "dsc: warning: %s\n", text);
}

/* Options of a plan, and the texts that they point to. */
typedef struct planner {
    dsc_engine_options options;
    char model[8192], device[16];
    dsc_override overrides[3];
} planner;

/* stage NULL: the config's. */
static dsc_status fill_planner(const plan_args *args, const char *stage, planner *p, dsc_error *err)
{
    p->options = (dsc_engine_options)DSC_ENGINE_OPTIONS_INIT;
    int32_t count = 0;
    if (args->model != NULL) {
        if (dsc_json_quote(p->model, sizeof p->model, args->model) >= sizeof p->model)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--model", "the name is too long");
        p->overrides[count++] = (dsc_override) { "dsc.model", p->model, "--model" };
    }
    if (stage != NULL)
        p->overrides[count++] = (dsc_override) { "zero_optimization.stage", stage, "--compare" };
    if (args->device != NULL) {
        snprintf(p->device, sizeof p->device, "\"%s\"", args->device);
        p->overrides[count++] = (dsc_override) { "dsc.device", p->device, "--device" };
    }
    p->options.overrides = p->overrides;
    p->options.override_count = count;
    p->options.plan_gpu_bytes = args->gpu_bytes;
    p->options.config_path = args->config;
    p->options.flags = DSC_ENGINE_PLAN_ONLY | (args->strict ? (uint32_t)DSC_ENGINE_STRICT : 0);
    p->options.plan_world_size = (int32_t)args->world_size;
    return DSC_OK;
}

static dsc_status open_planner(const plan_args *args, const char *stage, dsc_engine **out, dsc_error *err)
{
    planner p;
    DSC_TRY(fill_planner(args, stage, &p, err));
    if (stage == NULL) /* once is enough */
        p.options.log = (dsc_log) { log_line, NULL };
    return dsc_engine_open(out, &p.options, err);
}

/* Model states of ZeRO's formulas; other bytes depend on the batch and the machine. */
static bool is_state(const dsc_plan_row *row)
{
    static const dsc_tag states[] = { DSC_TAG_PARAM, DSC_TAG_GRAD, DSC_TAG_MASTER, DSC_TAG_MOMENT };
    for (size_t i = 0; i < DSC_COUNT(states); i++)
        if (strcmp(row->tag, dsc_tag_text(states[i])) == 0)
            return true;
    return false;
}

static bool is_nvme(const dsc_plan_row *row) { return strcmp(row->tier, dsc_tier_text(DSC_TIER_NVME)) == 0; }

static dsc_status read_table(dsc_engine *engine, const dsc_engine_planned *planned, plan_table *out, dsc_error *err)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    *out = (plan_table){ .ranks = dsc_engine_size(engine), .info.struct_bytes = sizeof out->info };
    dsc_engine_run_info(engine, &out->info);
    out->on_gpus = !planned->host_visible;
    out->gpu_free_bytes = planned->device_free_bytes;
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
        if (out->on_gpus && strcmp(row.tier, dsc_tier_text(DSC_TIER_DEVICE)) == 0)
            out->gpu_bytes += row.planned_bytes;
        *(is_nvme(&row) ? &out->nvme_bytes : is_state(&row) ? &out->states_bytes : &out->work_bytes) +=
            row.planned_bytes;
    }
    out->data_ranks = planned->grid.data;
    out->traffic = planned->traffic;
    out->kept = planned->kept;
    out->prefetch_held = planned->prefetch_held;
    out->free_bytes = planned->host_free_bytes;
    if (!dsc_mul_i64(out->states_bytes + out->work_bytes - out->gpu_bytes, out->ranks, &out->needed_bytes))
        out->needed_bytes = INT64_MAX;
    return DSC_OK;
}

/* ---- printing ---- */

static void print_line(const char *tag, const char *tier, int64_t bytes)
{
    printf("  %-20s %-7s %16lld %12.2f\n", tag, tier, (long long)bytes, (double)bytes / MIB);
}

static void print_part(const plan_table *t, bool states, const char *sum)
{
    for (int32_t i = 0; i < t->row_count; i++)
        if (is_state(&t->row[i]) == states && !is_nvme(&t->row[i]))
            print_line(t->row[i].tag, t->row[i].tier, t->row[i].planned_bytes);
    print_line(sum, "", states ? t->states_bytes : t->work_bytes);
}

static bool fits_gpu(const plan_table *t) { return t->gpu_bytes <= t->gpu_free_bytes; }

static void print_verdict(const plan_table *t)
{
    const double each = (double)(t->states_bytes + t->work_bytes - t->gpu_bytes) / MIB;
    const double needed = (double)t->needed_bytes / MIB;
    const char *s = t->ranks == 1 ? "" : "s";
    if (t->on_gpus)
        printf("%s the GPU: %.2f MiB of %.2f MiB that a rank can have of it\n", fits_gpu(t) ? "fits" : "does not fit",
               (double)t->gpu_bytes / MIB, (double)t->gpu_free_bytes / MIB);
    if (t->on_gpus && t->free_bytes == INT64_MAX) {
        printf("host memory: %lld rank%s x %.2f MiB = %.2f MiB\n", (long long)t->ranks, s, each, needed);
        return;
    }
    if (t->free_bytes == INT64_MAX)
        printf("free memory of this machine: unknown; %lld rank%s x %.2f MiB = %.2f MiB\n", (long long)t->ranks, s,
               each, needed);
    else if (t->needed_bytes <= t->free_bytes)
        printf("fits this machine: %lld rank%s x %.2f MiB = %.2f MiB of %.2f MiB free\n", (long long)t->ranks, s,
               each, needed, (double)t->free_bytes / MIB);
    else
        printf("does not fit this machine: %lld rank%s x %.2f MiB = %.2f MiB, %.2f MiB free\n", (long long)t->ranks, s,
               each, needed, (double)t->free_bytes / MIB);
}

/* Effective `ratio` and gradients_in_memory, because whole modules stay. */
static void print_kept(const plan_table *t)
{
    const dsc_zero_kept *s = &t->kept;
    const char *where = t->on_gpus ? "on the GPU" : "in memory";
    if (s->state_groups > 0 || s->first_elements > 0)
        printf("ratio: the states of %d of %d modules stay %s, %.2f M of %.2f M elements", (int)s->state_groups,
               (int)s->group_count, where, (double)s->state_elements * 1e-6, (double)s->elements * 1e-6);
    if (s->first_elements > 0)
        printf("; the first module's %.2f M do not fit, and they count most: a ratio of at most %.4g keeps them",
               (double)s->first_elements * 1e-6, dsc_zero_first_share(s));
    if (s->state_groups > 0 || s->first_elements > 0)
        printf("\n");
    if (s->sum_groups > 0)
        printf("gradients_in_memory: those of %d of %d modules with states in files, %.2f M of %.2f M elements\n",
               (int)s->sum_groups, (int)(s->group_count - s->state_groups), (double)s->sum_elements * 1e-6,
               (double)(s->elements - s->state_elements) * 1e-6);
}

static void print_traffic(const plan_table *t)
{
    const dsc_zero_traffic *m = &t->traffic;
    const int64_t read = m->pass_read_bytes + m->update_read_bytes;
    const int64_t written = m->pass_written_bytes + m->update_written_bytes;
    printf("a step moves %.2f MiB from other ranks to each", (double)m->wire_bytes / MIB);
    if (m->signs_bytes > 0)
        printf(", %.2f MiB once signs go instead", (double)m->signs_bytes / MIB);
    if (read + written > 0)
        printf(", %.2f MiB read from files, %.2f MiB written", (double)read / MIB, (double)written / MIB);
    if (m->to_device_bytes + m->to_host_bytes > 0)
        printf(", %.2f MiB from host memory to each GPU, %.2f MiB back", (double)m->to_device_bytes / MIB,
               (double)m->to_host_bytes / MIB);
    printf("\n");
    if (t->prefetch_held)
        printf("modules larger than stage3_prefetch_bucket_size are not gathered in advance: no room for windows\n");
    if (!t->timed)
        return;
    printf("measured here: %.1f GFLOP/s, %.0f M updates/s, copies %.1f GB/s", t->speed.flops_per_s * 1e-9,
           t->speed.updates_per_s * 1e-6, t->speed.copied_per_s * 1e-9);
    if (t->speed.file_read_per_s > 0)
        printf(", files read %.2f GB/s, written %.2f GB/s", t->speed.file_read_per_s * 1e-9,
               t->speed.file_written_per_s * 1e-9);
    printf("\na step takes at least %.3f s: passes %.3f s (files %.3f s), other ranks %.3f s, update %.3f s (files "
           "%.3f s)\n", t->time.step_s, t->time.compute_s, t->time.pass_files_s, t->time.wire_s, t->time.update_s,
           t->time.update_files_s);
}

static void print_text(const plan_table *t)
{
    const char *s = t->ranks == 1 ? "" : "s";
    const bool kept = strcmp(t->info.recompute, "kept") == 0, again = !kept && strcmp(t->info.recompute, "none") != 0;
    printf("%s: %.2f M parameters, %lld rank%s, ZeRO stage %d%s%s\n", t->info.model_name,
           (double)t->parameter_count * 1e-6, (long long)t->ranks, s, (int)t->info.zero_stage,
           kept    ? ", activations kept"
           : again ? ", recomputation "
                   : "",
           again ? t->info.recompute : "");
    printf("batch %lld = micro-batch %lld x accumulation %lld x %lld rank%s; %lld tokens a sample\n",
           (long long)t->info.train_batch_size, (long long)t->info.micro_batch_size,
           (long long)t->info.accumulation_steps, (long long)t->data_ranks, t->data_ranks == 1 ? "" : "s",
           (long long)t->info.seq_length);
    printf("numerics: %s\n", t->info.numerics);
    printf("each rank:             tier               bytes          MiB\n");
    print_part(t, true, "model states");
    print_part(t, false, "working memory");
    print_line("total", "", t->states_bytes + t->work_bytes);
    for (int32_t i = 0; i < t->row_count; i++)
        if (is_nvme(&t->row[i]))
            print_line(t->row[i].tag, t->row[i].tier, t->row[i].planned_bytes);
    if (t->nvme_bytes > 0)
        print_line("files", "", t->nvme_bytes);
    print_kept(t);
    print_traffic(t);
    if (t->card_timed)
        plan_card_print(&t->card, &t->card_time, t->ranks);
}

static void print_count(const char *name, int64_t value) { printf(",\"%s\":%lld", name, (long long)value); }

static void print_json_traffic(const plan_table *t)
{
    printf(",\"per_step\":{\"wire_bytes\":%lld", (long long)t->traffic.wire_bytes);
    if (t->traffic.signs_bytes > 0)
        print_count("signs_bytes", t->traffic.signs_bytes);
    print_count("pass_read_bytes", t->traffic.pass_read_bytes);
    print_count("pass_written_bytes", t->traffic.pass_written_bytes);
    print_count("update_read_bytes", t->traffic.update_read_bytes);
    print_count("update_written_bytes", t->traffic.update_written_bytes);
    print_count("to_device_bytes", t->traffic.to_device_bytes);
    print_count("to_host_bytes", t->traffic.to_host_bytes);
    if (t->timed)
        printf(",\"predicted_s\":%.6g", t->time.step_s);
    printf("}");
    if (t->card_timed)
        plan_card_print_json(&t->card, &t->card_time);
}

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
    if (t->kept.state_groups > 0)
        print_count("states_kept_elements", t->kept.state_elements);
    if (t->kept.sum_groups > 0)
        print_count("gradients_kept_elements", t->kept.sum_elements);
    if (t->on_gpus) {
        print_count("gpu_bytes", t->gpu_bytes);
        print_count("gpu_free_bytes", t->gpu_free_bytes);
    }
    print_json_traffic(t);
    print_count("all_ranks_bytes", t->needed_bytes);
    if (t->free_bytes == INT64_MAX)
        printf(",\"free_bytes\":null,\"fits\":%s", !t->on_gpus ? "null" : fits_gpu(t) ? "true" : "false");
    else
        printf(",\"free_bytes\":%lld,\"fits\":%s", (long long)t->free_bytes,
               t->needed_bytes <= t->free_bytes && (!t->on_gpus || fits_gpu(t)) ? "true" : "false");
}

/* ---- strategies side by side ---- */

static dsc_status read_strategy(const plan_args *args, const dsc_strategy *strategy, const plan_speed *speed,
                                plan_table *out, dsc_error *err)
{
    dsc_engine *engine = NULL;
    dsc_engine_planned planned;
    DSC_TRY(open_planner(args, strategy->stage, &engine, err));
    dsc_engine_planned_get(engine, &planned);
    const dsc_status status = read_table(engine, &planned, out, err);
    if (status == DSC_OK && speed != NULL)
        plan_speed_predict(&planned, speed, &out->time);
    dsc_engine_close(&engine);
    return status;
}

static dsc_status compare(const plan_args *args, const plan_speed *speed, dsc_error *err)
{
    plan_table t;
    if (!args->json)
        printf("each rank:       stage  memory MiB   files MiB   step from ranks MiB   files MiB%s\n",
               speed != NULL ? "   at least s" : "");
    else
        printf(",\"compare\":[");
    for (size_t i = 0; i < DSC_STRATEGY_COUNT; i++) {
        DSC_TRY(read_strategy(args, &dsc_strategies[i], speed, &t, err));
        const dsc_zero_traffic *m = &t.traffic;
        const int64_t files =
            m->pass_read_bytes + m->pass_written_bytes + m->update_read_bytes + m->update_written_bytes;
        const int64_t memory = t.states_bytes + t.work_bytes;
        if (args->json) {
            printf("%s{\"strategy\":\"%s\",\"zero_stage\":%s", i > 0 ? "," : "", dsc_strategies[i].name,
                   dsc_strategies[i].stage);
            print_count("memory_bytes", memory);
            print_count("nvme_bytes", t.nvme_bytes);
            print_count("wire_bytes_per_step", m->wire_bytes);
            print_count("file_bytes_per_step", files);
            if (speed != NULL)
                printf(",\"predicted_s\":%.6g", t.time.step_s);
            printf("}");
            continue;
        }
        printf("  %-14s %5s  %10.2f  %10.2f  %20.2f  %10.2f", dsc_strategies[i].name, dsc_strategies[i].stage,
               (double)memory / MIB, (double)t.nvme_bytes / MIB, (double)m->wire_bytes / MIB, (double)files / MIB);
        if (speed != NULL)
            printf("  %11.3f", t.time.step_s);
        printf("\n");
    }
    if (args->json)
        printf("]");
    return DSC_OK;
}

static dsc_status print_plan(const plan_args *args, dsc_engine *engine, dsc_error *err)
{
    plan_table table;
    dsc_engine_planned planned;
    dsc_engine_planned_get(engine, &planned);
    DSC_TRY(read_table(engine, &planned, &table, err));
    if (args->time && args->card != NULL) {
        planner p;
        DSC_TRY(plan_card_read(args->card, &table.card, err));
        DSC_TRY(fill_planner(args, NULL, &p, err));
        DSC_TRY(plan_card_predict(&table.card, &p.options, NULL, &table.card_time, err));
        table.card_timed = true;
    }
    table.timed = !table.card_timed && (args->time || (args->compare && planned.host_visible));
    if (table.timed) {
        DSC_TRY(plan_speed_measure(&planned, &table.speed, err));
        plan_speed_predict(&planned, &table.speed, &table.time);
    }
    (args->json ? print_json : print_text)(&table);
    planner grid;
    DSC_TRY(fill_planner(args, NULL, &grid, err));
    DSC_TRY(plan_grid_print(&grid.options, &planned, args->json, err));
    if (args->compare)
        DSC_TRY(compare(args, table.timed ? &table.speed : NULL, err));
    if (args->json)
        printf("}\n");
    else
        print_verdict(&table);
    return DSC_OK;
}

/* The table comes first: it is the answer also when it is meant for another machine than this one. */
int dsc_cmd_plan(int argc, char **argv)
{
    plan_args args = { 0 };
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int code = parse_args(argc, argv, &args);
    if (code >= 0)
        return code;
    dsc_status status = open_planner(&args, NULL, &engine, &err);
    if (status == DSC_OK)
        status = print_plan(&args, engine, &err);
    const int printed = status == DSC_OK ? dsc_tool_end() : 0;
    if (status == DSC_OK)
        status = dsc_engine_check_fit(engine, &err);
    else if (err.status == DSC_ERR_UNSUPPORTED && args.gpu_bytes == 0 && strcmp(err.where, "dsc.device") == 0) {
        const size_t used = strlen(err.message);
        snprintf(err.message + used, sizeof err.message - used, "; for another machine's GPUs: --gpu H100 or "
                 "--gpu-memory 80GiB");
    }
    dsc_engine_close(&engine);
    return printed != 0 ? printed : status == DSC_OK ? 0 : dsc_tool_fail(&err);
}
