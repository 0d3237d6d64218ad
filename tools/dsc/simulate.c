/* simulate.c - `dsc simulate`: how fast a config would train on up to 1,024 GPUs that need not be here, or CPU ranks.
 * SPDX-License-Identifier: Apache-2.0
 *
 * For each number of ranks the engine makes two steps on a virtual card (plan_card.h). The second one is replayed on
 * the clocks of all ranks (kernels/virtual/replay.h), with slow ranks and noise. Failures then follow from a seeded
 * random process over 30 days: each one costs a restart and the work since the last save. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/json.h"
#include "base/hosts/rank_names.h"
#include "base/io.h"
#include "base/rng.h"
#include "engine/planned.h"
#include "kernels/virtual/replay.h"
#include "tools/dsc/cpu_card.h"
#include "tools/dsc/plan_card.h"
#include "tools/dsc/plot.h"
#include "tools/dsc/scaling.h"
#include "tools/dsc/tool.h"

enum { RANKS_MOST = 1024, ITEMS_MAX = 1 << 22 };
#define DAYS_S (30 * 86400.0)
#define WORK_MAX 2e10 /* items of all clocks and steps: about ten minutes */

typedef struct simulated_row {
    int64_t ranks, micro_batch, accumulation;
    bool ran;
    char why[256]; /* else: why there is no time */
    double tokens; /* tokens of a step, over all ranks */
    plan_card_time one;
    dsc_replay_result replay;
    double save_every_s, useful; /* share of the time that finished steps took; 1 without failures */
    int64_t failures;
} simulated_row;

/* Of numbers that are 0 or more on the command line. */
enum { NOT_GIVEN = -1 };

typedef struct simulation {
    const char *config, *model, *card_name, *cpu, *measure, *out, *svg;
    bool strong, json, ranks_given, mode_given;
    char model_file[8192]; /* config.json of the model's folder; of a built-in model a file that is not there */
    int64_t steps, seed, slow_ranks; /* steps and seed, and the numbers below, are NOT_GIVEN at first */
    double slow_factor, noise_percent, fail_hours, save_s, restart_s, save_every_s;
    dsc_alloc *alloc;
    plan_card card;
    dsc_launch_times launches; /* of a CPU */
    dsc_virtual_trace trace;
    scaling_batch batch;
    int row_count;
    simulated_row *row; /* [SCALING_ROWS_MAX] */
} simulation;

/* ---- one number of ranks ---- */

typedef struct simulated_options {
    dsc_engine_options options;
    char model[8192], number[3][24];
    dsc_override overrides[24];
} simulated_options;

/* Without a batch the config's own counts. */
static dsc_status fill_options(const simulation *s, const simulated_row *row, simulated_options *o, dsc_error *err)
{
    static const char *const keys[] = { "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                                        "train_batch_size" };
    const int64_t values[] = { row->micro_batch, row->accumulation, row->micro_batch * row->accumulation * row->ranks };
    int32_t count = 0;
    o->options = (dsc_engine_options)DSC_ENGINE_OPTIONS_INIT;
    if (s->model != NULL) {
        if (dsc_json_quote(o->model, sizeof o->model, s->model) >= sizeof o->model)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--model", "the name is too long");
        o->overrides[count++] = (dsc_override) { "dsc.model", o->model, "--model" };
    }
    for (size_t i = 0; row->micro_batch > 0 && i < DSC_COUNT(keys); i++) {
        snprintf(o->number[i], sizeof o->number[i], "%lld", (long long)values[i]);
        o->overrides[count++] = (dsc_override) { keys[i], o->number[i], "--ranks" };
    }
    o->options.overrides = o->overrides;
    if (s->card_name == NULL) { /* a launch is measured on the thread that makes it */
        o->overrides[count++] = (dsc_override) { "dsc.device", "\"cpu\"", "--cpu" };
        o->overrides[count++] = (dsc_override) { "dsc.threads", "1", "--cpu" };
    }
    o->options.override_count = count;
    o->options.plan_gpu_bytes = (int64_t)s->card.rates.memory_bytes;
    o->options.config_path = s->config;
    o->options.flags = DSC_ENGINE_PLAN_ONLY;
    o->options.plan_world_size = (int32_t)row->ranks;
    return DSC_OK;
}

static dsc_status read_batch(simulation *s, dsc_error *err)
{
    simulated_options o;
    dsc_engine *engine = NULL;
    dsc_engine_planned planned;
    DSC_TRY(fill_options(s, &s->row[0], &o, err));
    DSC_TRY(dsc_engine_open(&engine, &o.options, err));
    dsc_engine_planned_get(engine, &planned);
    if (snprintf(s->model_file, sizeof s->model_file, "%s/config.json", planned.config->own.model) >=
        (int)sizeof s->model_file)
        s->model_file[0] = 0; /* no folder has so long a name */
    s->batch = (scaling_batch) { planned.config->train_micro_batch_size_per_gpu,
                                 planned.config->gradient_accumulation_steps, planned.config->train_batch_size };
    dsc_engine_close(&engine);
    return DSC_OK;
}

static dsc_status replay_row(const simulation *s, simulated_row *row, dsc_error *err)
{
    const dsc_replay_options options = { .alloc = s->alloc,
                                         .rates = &s->card.rates,
                                         .trace = &s->trace,
                                         .streams = row->one.streams,
                                         .events = row->one.events,
                                         .ranks = (int32_t)row->ranks,
                                         .steps = (int32_t)s->steps,
                                         .slow_ranks = (int32_t)dsc_min_i64(s->slow_ranks, row->ranks),
                                         .slow_factor = s->slow_factor,
                                         .noise = s->noise_percent / 100,
                                         .seed = (uint64_t)s->seed };
    const double clocks = s->noise_percent > 0 ? (double)row->ranks : 2;
    if ((double)s->trace.count * clocks * (double)(s->steps + 1) > WORK_MAX)
        return DSC_FAIL(
            err, DSC_ERR_UNSUPPORTED, s->config,
            "%lld steps of %lld launches and waits on %lld ranks with noise take too long; give fewer --steps",
            (long long)s->steps, (long long)s->trace.count, (long long)row->ranks);
    return dsc_virtual_replay(&options, &row->replay, err);
}

/* Saves cost save_s each; a failure loses what followed the last one. Young's rule: the square root of twice the cost
 * of a save times the mean time between failures, which is at least a second here. */
static void add_failures(const simulation *s, simulated_row *row)
{
    const double mean_s = fmax(s->fail_hours * 3600 / (double)row->ranks, 1);
    double now_s = 0, useful_s = 0;
    row->useful = 1;
    if (s->fail_hours <= 0)
        return;
    row->save_every_s = s->save_every_s > 0 ? s->save_every_s : sqrt(2 * s->save_s * mean_s);
    while (now_s < DAYS_S) {
        const double uniform =
            (dsc_rng_u32((uint64_t)s->seed, (uint64_t)row->ranks, (uint64_t)row->failures) + 0.5) * 0x1p-32;
        const double until_s = fmin(-mean_s * log(uniform), DAYS_S - now_s);
        const double saves = floor(until_s / (row->save_every_s + s->save_s));
        useful_s += saves * row->save_every_s;
        if (now_s + until_s >= DAYS_S) /* the 30 days end without a failure */
            useful_s += fmin(until_s - saves * (row->save_every_s + s->save_s), row->save_every_s);
        else
            row->failures++;
        now_s += until_s + s->restart_s;
    }
    row->useful = useful_s / DAYS_S;
}

/* A number of ranks on which the config cannot run is a row without a time. */
static dsc_status simulate_row(simulation *s, simulated_row *row, dsc_error *err)
{
    simulated_options o;
    dsc_error own = DSC_ERROR_INIT;
    if (row->accumulation == 0)
        return DSC_OK;
    s->trace.count = 0;
    s->trace.full = false;
    DSC_TRY(fill_options(s, row, &o, err));
    dsc_status status = plan_card_predict(&s->card, &o.options, &s->trace, &row->one, &own);
    if (status == DSC_OK)
        status = replay_row(s, row, &own);
    if (status == DSC_OK && !(row->replay.step_s > 0 && isfinite(row->replay.step_s)))
        status = DSC_FAIL(&own, DSC_ERR_INPUT, s->config,
                          "the card's times give a step of %g s; measure again by "
                          "dsc simulate --measure with this config",
                          row->replay.step_s);
    if (status == DSC_ERR_NOFIT || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED) {
        snprintf(row->why, sizeof row->why, "%.250s", own.message);
        return DSC_OK;
    }
    if (status != DSC_OK) {
        *err = own;
        return status;
    }
    row->ran = true;
    row->tokens = row->one.tokens * (double)row->ranks;
    add_failures(s, row);
    return DSC_OK;
}

/* ---- the table ---- */

typedef struct simulated_numbers {
    double step_s, most_s, tokens_per_s, speed_up, efficiency, waited, mfu, exchange, exposed, useful,
        cpu_s; /* NaN: unknown */
} simulated_numbers;

/* Speed-up and efficiency are against the first number of ranks that runs, taken as perfect. */
static simulated_numbers numbers_of(const simulation *s, const simulated_row *row)
{
    simulated_numbers n = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    const simulated_row *first = NULL;
    for (int i = 0; i < s->row_count && first == NULL; i++)
        first = s->row[i].ran ? &s->row[i] : NULL;
    if (!row->ran || first == NULL)
        return n;
    n.step_s = row->replay.step_s;
    n.most_s = row->replay.most_s;
    n.tokens_per_s = row->tokens / n.step_s;
    n.speed_up = n.tokens_per_s / (first->tokens / first->replay.step_s) * (double)first->ranks;
    n.efficiency = n.speed_up / (double)row->ranks;
    n.waited = fmax(0, row->replay.waited_s / n.step_s);
    if (s->cpu == NULL) /* a CPU's peak is not known: its card has the speed of one product */
        n.mfu = row->one.flops / (n.step_s * s->card.peak_flops);
    n.exchange = row->one.busy_s[DSC_VIRTUAL_EXCHANGE] / n.step_s;
    n.exposed = row->replay.exposed_s / n.step_s;
    for (int p = 0; s->cpu != NULL && p < DSC_VIRTUAL_PART_COUNT; p++)
        n.cpu_s = (p > 0 ? n.cpu_s : 0) + row->one.busy_s[p] / fmax(1, (double)row->ranks / s->card.rates.cores);
    n.useful = row->useful;
    return n;
}

static void print_head(const simulation *s)
{
    printf("simulated %s scaling of %s on %s: %s\n", s->strong ? "strong" : "weak", s->config, s->card.rates.name,
           s->strong ? "the ranks share the batch of a step" : "each rank has the same work");
    if (s->slow_ranks > 0)
        printf("kernels of %lld ranks take %.2f times as long\n", (long long)s->slow_ranks, s->slow_factor);
    if (s->noise_percent > 0)
        printf("kernels take %.1f %% longer on average, at random by rank and kernel\n", s->noise_percent);
    if (s->fail_hours > 0)
        printf("a card fails once in %.0f hours; a save takes %.0f s, a restart %.0f s\n", s->fail_hours, s->save_s,
               s->restart_s);
}

/* The model sees pictures. */
static bool of_pictures(const simulation *s)
{
    bool any = false;
    for (int i = 0; i < s->row_count; i++)
        any = any || s->row[i].one.pictures;
    return any;
}

static void print_table(const simulation *s)
{
    print_head(s);
    printf("ranks   batch  micro x acc    step ms (longest)      %s/s  speed-up  efficiency    MFU  exchange  "
           "exposed  waiting",
           of_pictures(s) ? "images" : "tokens");
    printf("%s\n", s->fail_hours > 0 ? "  useful  failures in 30 days" : "");
    for (int i = 0; i < s->row_count; i++) {
        const simulated_row *row = &s->row[i];
        const simulated_numbers n = numbers_of(s, row);
        printf("%5lld", (long long)row->ranks);
        if (!row->ran) {
            printf("  %s\n", row->why);
            continue;
        }
        char mfu[16] = "-";
        if (!isnan(n.mfu))
            snprintf(mfu, sizeof mfu, "%.1f%%", n.mfu * 100);
        printf("  %6lld  %5lldx%-5lld  %9.2f (%.2f)  %12.0f  %8.2f  %9.1f%%  %5s  %7.1f%%  %6.1f%%  %6.1f%%",
               (long long)(row->micro_batch * row->accumulation * row->ranks), (long long)row->micro_batch,
               (long long)row->accumulation, n.step_s * 1e3, n.most_s * 1e3, n.tokens_per_s, n.speed_up,
               n.efficiency * 100, mfu, n.exchange * 100, n.exposed * 100, n.waited * 100);
        if (s->fail_hours > 0)
            printf("  %5.1f%%  %lld, a save every %.0f s", n.useful * 100, (long long)row->failures, row->save_every_s);
        printf("\n");
    }
    printf(
        "All times are simulated%s. Exchanges run beside kernels. Exposed: computation waits for exchanges. Waiting: a "
        "rank has reached an exchange and others have not.\n",
        s->card.measured ? "" : "; the card's rates come from data sheets");
}

static dsc_status add_row(const simulation *s, const simulated_row *row, cJSON *rows, dsc_error *err)
{
    const simulated_numbers n = numbers_of(s, row);
    const scaling_member members[] = {
        { "ranks", (double)row->ranks },
        { "train_batch_size", (double)(row->micro_batch * row->accumulation * row->ranks) },
        { "train_micro_batch_size_per_gpu", (double)row->micro_batch },
        { "gradient_accumulation_steps", (double)row->accumulation },
        { "step_s", n.step_s },
        { "step_s_most", n.most_s },
        { row->one.pictures ? "images_per_s" : "tokens_per_s", n.tokens_per_s },
        { "speed_up", n.speed_up },
        { "efficiency", n.efficiency },
        { "mfu", n.mfu },
        { "exchange_share", n.exchange },
        { "exposed_share", n.exposed },
        { "rank_cpu_s", n.cpu_s },
        { "waiting_share", n.waited },
        { "useful_share", n.useful },
    };
    return scaling_add_row(rows, members, DSC_COUNT(members), row->ran ? NULL : row->why, err);
}

static dsc_status write_table(const simulation *s, dsc_error *err)
{
    cJSON *root, *rows;
    DSC_TRY(scaling_open_table(s->strong, &root, &rows, err));
    dsc_status status = DSC_OK;
    if (cJSON_AddTrueToObject(root, "simulated") == NULL ||
        cJSON_AddStringToObject(root, "card", s->card.rates.name) == NULL)
        status = DSC_FAIL(err, DSC_ERR_NOMEM, "dsc simulate", "out of host memory: no table");
    for (int i = 0; i < s->row_count && status == DSC_OK; i++)
        status = add_row(s, &s->row[i], rows, err);
    if (status == DSC_OK)
        status = scaling_write_table(root, s->json, s->out, err);
    cJSON_Delete(root);
    return status;
}

static dsc_status draw(const simulation *s, dsc_error *err)
{
    double ranks[SCALING_ROWS_MAX], tokens[SCALING_ROWS_MAX], ideal[SCALING_ROWS_MAX], efficiency[SCALING_ROWS_MAX];
    int64_t count = 0;
    for (int i = 0; i < s->row_count; i++) {
        const simulated_numbers n = numbers_of(s, &s->row[i]);
        if (!s->row[i].ran)
            continue;
        ranks[count] = (double)s->row[i].ranks;
        tokens[count] = n.tokens_per_s;
        ideal[count] = tokens[0] / ranks[0] * ranks[count];
        efficiency[count++] = n.efficiency * 100;
    }
    const plot_panel panels[] = {
        { of_pictures(s) ? "images per second" : "tokens per second",
          "ranks",
          { { "simulated", ranks, tokens, count }, { "perfect", ranks, ideal, count } },
          2,
          false },
        { "efficiency, %", "ranks", { { "simulated", ranks, efficiency, count } }, 1, false },
    };
    return plot_save_svg(s->svg, panels, DSC_COUNT(panels), err);
}

static dsc_status report(const simulation *s, dsc_error *err)
{
    if (!s->json)
        print_table(s);
    DSC_TRY(write_table(s, err));
    if (s->svg != NULL)
        DSC_TRY(draw(s, err));
    for (int i = 0; i < s->row_count; i++)
        if (s->row[i].ran)
            return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, s->config, "no number of ranks can run this config; the table says why");
}

/* ---- the command line ---- */

static dsc_status set_ranks(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    simulation *s = out;
    scaling_ranks ranks;
    DSC_TRY(scaling_read_ranks(flag->name, text, RANKS_MOST, "8,64,512", &ranks, err));
    s->ranks_given = true;
    s->row_count = ranks.count;
    for (int i = 0; i < ranks.count; i++)
        s->row[i].ranks = ranks.value[i];
    return DSC_OK;
}

static dsc_status set_mode(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)value, (void)err;
    simulation *s = out;
    s->strong = strcmp(flag->name, "--strong") == 0;
    s->mode_given = true;
    return DSC_OK;
}

/* "2:1.5" */
static dsc_status set_slow(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    simulation *s = out;
    char *end;
    const long long ranks = strtoll(text, &end, 10);
    const bool pair = end != text && *end == ':';
    const char *factor = end + 1;
    const double times = pair ? strtod(factor, &end) : 0;
    if (!pair || end == factor || *end != 0 || ranks < 1 || ranks > RANKS_MOST || !(times >= 1 && times <= 1000))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name,
                        "\"%.60s\" is not a number of ranks with a factor of 1 to 1000, such as 2:1.5", text);
    s->slow_ranks = ranks;
    s->slow_factor = times;
    return DSC_OK;
}

#define AT(field) offsetof(simulation, field)
static const dsc_flag rows[] = {
    { "--config", NULL, "FILE", DSC_FLAG_TEXT, AT(config), .required = true, .help = "the ds_config.json" },
    { "--model", NULL, "NAME|DIR", DSC_FLAG_TEXT, AT(model),
      .help = "built-in model or model folder; default: the config's dsc.model" },
    { "--gpu", NULL, "CARD", DSC_FLAG_TEXT, AT(card_name),
      .help = "the card, such as H200; its rates are in share/dsc/cards" },
    { "--cpu", NULL, "FILE", DSC_FLAG_TEXT, AT(cpu),
      .help = "instead of --gpu: ranks on one host's CPU, which --measure has written to the file" },
    { "--measure", NULL, "FILE", DSC_FLAG_TEXT, AT(measure),
      .help = "measure this CPU by steps of one rank of the config, write the file, and simulate nothing" },
    { "--ranks", NULL, "LIST", DSC_FLAG_CALL, 0, .set = set_ranks,
      .help = "numbers of GPUs, rising, up to 1024; default 1,8,64,512" },
    { "--weak", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_mode,
      .help = "keep the work of each rank, so that the batch grows; the default" },
    { "--strong", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_mode, .help = "keep the batch, which the ranks share" },
    { "--steps", NULL, "N", DSC_FLAG_INTEGER, AT(steps), .min = 1, .max = 1000, .help = "steps to replay; default 5" },
    { "--slow", NULL, "N:FACTOR", DSC_FLAG_CALL, 0, .set = set_slow,
      .help = "kernels of N ranks take FACTOR times as long" },
    { "--noise", NULL, "PERCENT", DSC_FLAG_NUMBER, AT(noise_percent), .low = 0, .high = 100,
      .help = "kernels take that much longer on average, at random by rank and kernel; default 0" },
    { "--fail-hours", NULL, "HOURS", DSC_FLAG_NUMBER, AT(fail_hours), .low = 0, .high = 1e9,
      .help = "mean time between failures of one card; default 0: none fails" },
    { "--save-s", NULL, "SECONDS", DSC_FLAG_NUMBER, AT(save_s), .low = 0.001, .high = 1e6,
      .help = "time that a save takes from training; default 30" },
    { "--save-every-s", NULL, "SECONDS", DSC_FLAG_NUMBER, AT(save_every_s), .low = 0, .high = 1e9,
      .help = "time between saves; default: the best one by Young's rule" },
    { "--restart-s", NULL, "SECONDS", DSC_FLAG_NUMBER, AT(restart_s), .low = 1, .high = 1e6,
      .help = "time from a failure to the next step; default 120" },
    { "--seed", NULL, "N", DSC_FLAG_INTEGER, AT(seed), .min = 0, .max = INT64_MAX,
      .help = "of noise and failures; default 1" },
    { "-o", "--out", "TABLE.json", DSC_FLAG_TEXT, AT(out), .help = "also write the table as JSON" },
    { "--svg", NULL, "FILE.svg", DSC_FLAG_TEXT, AT(svg), .help = "also draw the speed as a picture" },
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print the table as JSON" },
};
static const dsc_flag_command page = {
    .name = "dsc simulate",
    .description = "Simulates how fast a config trains on numbers of GPUs that need not be here.",
    .flags = rows,
    .flag_count = DSC_COUNT(rows),
    .exit_codes = "0 done; 1 failed; 2 wrong command line, config or model, or no number of ranks can run it",
};

static dsc_status open_launches(simulation *s, dsc_error *err)
{
    return dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, DSC_LAUNCH_TIMES, sizeof *s->launches.row, &s->launches.row,
                            err);
}

/* Measured steps write none of a run's logs and profiles. */
static void leave_out_logs(simulated_options *o)
{
    static const dsc_override none[] = {
        { "dsc.trace", "\"\"", "--measure" },
        { "dsc.prometheus_port", "0", "--measure" },
        { "dsc.mlflow.tracking_uri", "\"\"", "--measure" },
        { "tensorboard.enabled", "false", "--measure" },
        { "csv_monitor.enabled", "false", "--measure" },
        { "wandb.enabled", "false", "--measure" },
        { "comet.enabled", "false", "--measure" },
        { "flops_profiler.enabled", "false", "--measure" },
        { "comms_logger.enabled", "false", "--measure" },
    };
    DSC_ASSERT(o->options.override_count + (int32_t)DSC_COUNT(none) <= (int32_t)DSC_COUNT(o->overrides));
    for (size_t i = 0; i < DSC_COUNT(none); i++)
        o->overrides[o->options.override_count++] = none[i];
}

/* The measured engine is one rank, also where a launcher has started this program as one of several. */
static void leave_world(void)
{
    for (int f = 0; f < DSC_RANK_FAMILIES; f++) {
        const dsc_rank_names *n = &dsc_rank_family_names[f];
        const char *const names[] = { n->rank, n->size,       n->local_rank, n->local_size,      n->local_size_alias,
                                      n->node, n->node_count, n->node_alias, n->node_count_alias };
        for (size_t i = 0; i < DSC_COUNT(names); i++)
            if (names[i] != NULL)
                unsetenv(names[i]);
    }
}

static dsc_status refuse_inputs(const simulation *s, const char *out, dsc_error *err)
{
    const char *const inputs[] = { s->config, s->cpu, s->model_file };
    return out == NULL ? DSC_OK : dsc_io_refuse_input(out, inputs, DSC_COUNT(inputs), err);
}

/* A flag of simulations; NULL: none is given. */
static const char *simulating_flag(const simulation *s)
{
    const struct {
        const char *name;
        bool given;
    } flags[] = {
        { "--ranks", s->ranks_given },
        { s->strong ? "--strong" : "--weak", s->mode_given },
        { "--steps", s->steps != NOT_GIVEN },
        { "--slow", s->slow_ranks > 0 },
        { "--noise", s->noise_percent >= 0 },
        { "--fail-hours", s->fail_hours >= 0 },
        { "--save-s", s->save_s >= 0 },
        { "--save-every-s", s->save_every_s >= 0 },
        { "--restart-s", s->restart_s >= 0 },
        { "--seed", s->seed != NOT_GIVEN },
        { "-o", s->out != NULL },
        { "--svg", s->svg != NULL },
        { "--json", s->json },
    };
    for (size_t i = 0; i < DSC_COUNT(flags); i++)
        if (flags[i].given)
            return flags[i].name;
    return NULL;
}

static void take_defaults(simulation *s)
{
    s->steps = s->steps == NOT_GIVEN ? 5 : s->steps;
    s->seed = s->seed == NOT_GIVEN ? 1 : s->seed;
    s->noise_percent = fmax(0, s->noise_percent);
    s->fail_hours = fmax(0, s->fail_hours);
    s->save_s = s->save_s < 0 ? 30 : s->save_s;
    s->save_every_s = fmax(0, s->save_every_s);
    s->restart_s = s->restart_s < 0 ? 120 : s->restart_s;
}

static dsc_status measure(simulation *s, dsc_error *err)
{
    const char *const needless = simulating_flag(s);
    const simulated_row one = { .ranks = 1 };
    simulated_options o;
    if (s->card_name != NULL || s->cpu != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--measure", "measures this CPU; leave out --gpu and --cpu");
    if (needless != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--measure", "simulates nothing; leave out %s", needless);
    leave_world();
    DSC_TRY(read_batch(s, err));
    DSC_TRY(refuse_inputs(s, s->measure, err));
    DSC_TRY(open_launches(s, err));
    DSC_TRY(fill_options(s, &one, &o, err));
    leave_out_logs(&o);
    o.options.flags = 0;
    o.options.plan_world_size = 0;
    DSC_TRY(cpu_card_measure(&o.options, &s->launches, &s->card, err));
    DSC_TRY(cpu_card_write(&s->card, s->measure, err));
    printf("%d shapes of launches measured; the engine's own part is %.2f us a launch, an exchange starts in %.1f us\n",
           (int)s->launches.count, s->card.rates.launch_s * 1e6, s->card.rates.peer_s * 1e6);
    return DSC_OK;
}

static dsc_status read_card(simulation *s, dsc_error *err)
{
    if ((s->card_name != NULL) == (s->cpu != NULL))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--gpu", "%s; give a card by --gpu, or a CPU by --cpu",
                        s->cpu != NULL ? "is there beside --cpu" : "is missing");
    if (s->card_name != NULL)
        return plan_card_read(s->card_name, &s->card, err);
    DSC_TRY(open_launches(s, err));
    return cpu_card_read(s->alloc, s->cpu, &s->launches, &s->card, err);
}

static dsc_status run(simulation *s, dsc_error *err)
{
    if (s->out != NULL && s->svg != NULL && strcmp(s->out, s->svg) == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--svg", "the picture has the table's file; give it another name");
    if (s->measure != NULL)
        return measure(s, err);
    take_defaults(s);
    DSC_TRY(read_card(s, err));
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, ITEMS_MAX, sizeof *s->trace.item, &s->trace.item, err));
    s->trace.capacity = ITEMS_MAX;
    DSC_TRY(read_batch(s, err));
    DSC_TRY(refuse_inputs(s, s->out, err));
    DSC_TRY(refuse_inputs(s, s->svg, err));
    for (int i = 0; i < s->row_count; i++) {
        simulated_row *row = &s->row[i];
        (void)scaling_share_batch(&s->batch, s->strong, row->ranks, &row->micro_batch, &row->accumulation, row->why,
                                  sizeof row->why); /* else the row says why */
        DSC_TRY(simulate_row(s, row, err));
    }
    return report(s, err);
}

int dsc_cmd_simulate(int argc, char **argv)
{
    static const int64_t usual[] = { 1, 8, 64, 512 };
    simulation s = { .steps = NOT_GIVEN, .seed = NOT_GIVEN, .slow_factor = 1, .noise_percent = NOT_GIVEN,
                     .fail_hours = NOT_GIVEN, .save_s = NOT_GIVEN, .save_every_s = NOT_GIVEN, .restart_s = NOT_GIVEN,
                     .row_count = (int)DSC_COUNT(usual) };
    dsc_error err = DSC_ERROR_INIT;
    s.row = calloc(SCALING_ROWS_MAX, sizeof *s.row);
    if (s.row == NULL)
        return dsc_tool_usage("dsc simulate", "out of host memory");
    for (int i = 0; i < s.row_count; i++)
        s.row[i].ranks = usual[i];
    int code = dsc_tool_parse(&page, argc, argv, &s);
    if (code < 0) {
        dsc_status status = dsc_alloc_open(&s.alloc, &err);
        if (status == DSC_OK)
            status = run(&s, &err);
        code = status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
        dsc_alloc_free(s.alloc, s.trace.item);
        dsc_alloc_free(s.alloc, s.launches.row);
        dsc_alloc_close(&s.alloc);
    }
    free(s.row);
    return code;
}
