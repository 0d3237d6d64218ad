/* scale.c - `dsc scale`: how fast a config trains on 1, 2, 4, ... ranks, by short real runs in turns.
 *
 * Weak scaling keeps each rank's work: its micro-batch and accumulation. Strong scaling keeps the batch of a step,
 * which the ranks share. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "tools/dsc/plot.h"
#include "tools/dsc/scaling.h"
#include "tools/dsc/tool.h"
#include "tools/dsc/trial.h"

enum { RANKS_MOST = 4096 };

typedef struct scale_row {
    int64_t ranks;
    int64_t micro_batch, accumulation; /* 0: this number of ranks cannot have the batch */
    trial_result result;
} scale_row;

typedef struct scale {
    trial_setup setup;
    const char *out, *svg;
    bool strong, json;
    int64_t repeat;
    scaling_batch batch;
    int row_count;
    scale_row *row; /* [SCALING_ROWS_MAX] */
} scale;

/* ---- what each number of ranks gets ---- */

static dsc_status read_batch(scale *s, dsc_error *err)
{
    dsc_config *config = NULL;
    DSC_TRY(trial_resolve(&s->setup, s->setup.config, s->row[0].ranks, &config, err));
    s->batch = (scaling_batch) { config->train_micro_batch_size_per_gpu, config->gradient_accumulation_steps,
                                 config->train_batch_size };
    dsc_alloc_free(s->setup.alloc, config);
    return DSC_OK;
}

/* In turns, so that what else the machine does meets all alike. */
static dsc_status measure(scale *s, dsc_error *err)
{
    dsc_status status = DSC_OK;
    for (int64_t round = 0; round < s->repeat && status == DSC_OK; round++)
        for (int i = 0; i < s->row_count && status == DSC_OK; i++) {
            scale_row *row = &s->row[i];
            if (row->accumulation == 0 || row->result.exit_code != 0)
                continue;
            cJSON *config = s->setup.config;
            status = trial_put_batch(config, row->micro_batch, row->accumulation, err);
            if (status == DSC_OK)
                status = trial_run(&s->setup, config, row->ranks, &row->result, err);
            fprintf(stderr, "%lld rank%s: %s\n", (long long)row->ranks, row->ranks == 1 ? "" : "s",
                    status != DSC_OK               ? "stopped"
                    : row->result.exit_code != 0 ? row->result.why
                                                 : "measured");
        }
    return status;
}

/* ---- the table ---- */

typedef struct scale_numbers {
    double step_s, low_s, high_s, tokens_per_s, speed_up, efficiency, waited, epoch_s; /* NaN: unknown */
} scale_numbers;

/* Speed-up and efficiency are against the first number of ranks that ran, taken as perfect. */
static scale_numbers numbers_of(const scale *s, const scale_row *row)
{
    scale_numbers n = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    const scale_row *first = NULL;
    for (int i = 0; i < s->row_count && first == NULL; i++)
        first = s->row[i].result.runs > 0 ? &s->row[i] : NULL;
    if (row->result.runs == 0 || first == NULL)
        return n;
    n.step_s = trial_quantile_s(&row->result, 0.5);
    n.low_s = trial_quantile_s(&row->result, 0.25);
    n.high_s = trial_quantile_s(&row->result, 0.75);
    n.tokens_per_s = trial_tokens_per_s(&row->result);
    n.speed_up = n.tokens_per_s / trial_tokens_per_s(&first->result) * (double)first->ranks;
    n.efficiency = n.speed_up / (double)row->ranks;
    if (row->result.waited_s >= 0) {
        double all_s = 0;
        for (int64_t i = 0; i < row->result.step_count; i++)
            all_s += row->result.step_s[i];
        n.waited = row->result.waited_s / all_s;
    }
    if (row->result.steps_per_epoch > 0)
        n.epoch_s = row->result.steps_per_epoch * n.step_s;
    return n;
}

static void print_cell(double value, int width, int decimals, const char *unit)
{
    if (isfinite(value))
        printf("  %*.*f%s", width, decimals, value, unit);
    else
        printf("  %*s%*s", width, "-", (int)strlen(unit), "");
}

/* The model sees pictures. */
static bool of_pictures(const scale *s)
{
    bool any = false;
    for (int i = 0; i < s->row_count; i++)
        any = any || s->row[i].result.pictures;
    return any;
}

static void print_table(const scale *s)
{
    printf("%s scaling of %s: %s\n", s->strong ? "strong" : "weak", s->setup.path,
           s->strong ? "the ranks share the batch of a step" : "each rank has the same work");
    printf("ranks   batch  micro x acc    step ms (quartiles)         %s/s  speed-up  efficiency  waiting  epoch s"
           "\n", of_pictures(s) ? "images" : "tokens");
    for (int i = 0; i < s->row_count; i++) {
        const scale_row *row = &s->row[i];
        const scale_numbers n = numbers_of(s, row);
        printf("%5lld", (long long)row->ranks);
        if (row->result.runs == 0) {
            printf("  %s\n", row->result.why);
            continue;
        }
        printf("  %6lld  %5lldx%-5lld", (long long)(row->micro_batch * row->accumulation * row->ranks),
               (long long)row->micro_batch, (long long)row->accumulation);
        print_cell(n.step_s * 1e3, 9, 2, "");
        printf(" (%.2f to %.2f)", n.low_s * 1e3, n.high_s * 1e3);
        print_cell(n.tokens_per_s, 12, 0, "");
        print_cell(n.speed_up, 8, 2, "");
        print_cell(n.efficiency * 100, 9, 1, "%");
        print_cell(n.waited * 100, 5, 1, "%");
        print_cell(n.epoch_s, 8, 1, "");
        printf("\n");
    }
    printf("waiting: collectives under way and nothing else to do, the mean over the ranks\n");
}

static dsc_status add_row(const scale *s, const scale_row *row, cJSON *rows, dsc_error *err)
{
    const scale_numbers n = numbers_of(s, row);
    const scaling_member members[] = {
        { "ranks", (double)row->ranks },
        { "train_batch_size", (double)(row->micro_batch * row->accumulation * row->ranks) },
        { "train_micro_batch_size_per_gpu", (double)row->micro_batch },
        { "gradient_accumulation_steps", (double)row->accumulation },
        { "steps", (double)row->result.step_count },
        { "step_s", n.step_s },
        { "step_s_low", n.low_s },
        { "step_s_high", n.high_s },
        { of_pictures(s) ? "images_per_s" : "tokens_per_s", n.tokens_per_s },
        { "speed_up", n.speed_up },
        { "efficiency", n.efficiency },
        { "waiting_share", n.waited },
        { "epoch_s", n.epoch_s },
    };
    return scaling_add_row(rows, members, DSC_COUNT(members), row->result.why[0] != 0 ? row->result.why : NULL, err);
}

static dsc_status write_table(const scale *s, dsc_error *err)
{
    cJSON *root, *rows;
    DSC_TRY(scaling_open_table(s->strong, &root, &rows, err));
    dsc_status status = DSC_OK;
    for (int i = 0; i < s->row_count && status == DSC_OK; i++)
        status = add_row(s, &s->row[i], rows, err);
    if (status == DSC_OK)
        status = scaling_write_table(root, s->json, s->out, err);
    cJSON_Delete(root);
    return status;
}

static dsc_status draw(const scale *s, dsc_error *err)
{
    double ranks[SCALING_ROWS_MAX], tokens[SCALING_ROWS_MAX], ideal[SCALING_ROWS_MAX], efficiency[SCALING_ROWS_MAX],
        waiting[SCALING_ROWS_MAX];
    int64_t count = 0;
    for (int i = 0; i < s->row_count; i++) {
        const scale_numbers n = numbers_of(s, &s->row[i]);
        if (s->row[i].result.runs == 0)
            continue;
        ranks[count] = (double)s->row[i].ranks;
        tokens[count] = n.tokens_per_s;
        ideal[count] = tokens[0] / ranks[0] * ranks[count];
        efficiency[count] = n.efficiency * 100;
        waiting[count] = n.waited * 100;
        count++;
    }
    const plot_panel panels[] = {
        { of_pictures(s) ? "images per second" : "tokens per second",
          "ranks",
          { { "measured", ranks, tokens, count }, { "perfect", ranks, ideal, count } }, 2,
          false },
        { "efficiency, %", "ranks", { { "measured", ranks, efficiency, count } }, 1, false },
        { "waiting for other ranks, % of a step", "ranks", { { "measured", ranks, waiting, count } }, 1, false },
    };
    return plot_save_svg(s->svg, panels, DSC_COUNT(panels), err);
}

static dsc_status tell(const scale *s, dsc_error *err)
{
    if (!s->json)
        print_table(s);
    DSC_TRY(write_table(s, err));
    if (s->svg != NULL)
        DSC_TRY(draw(s, err));
    for (int i = 0; i < s->row_count; i++)
        if (s->row[i].result.runs > 0)
            return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, s->setup.path, "no run ended well; the table has their words");
}

/* ---- the command line ---- */

static dsc_status set_ranks(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    scale *s = out;
    scaling_ranks ranks;
    DSC_TRY(scaling_read_ranks(flag->name, text, RANKS_MOST, "1,2,4", &ranks, err));
    s->row_count = ranks.count;
    for (int i = 0; i < ranks.count; i++)
        s->row[i].ranks = ranks.value[i];
    return DSC_OK;
}

static dsc_status set_mode(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    (void)value, (void)err;
    ((scale *)out)->strong = strcmp(flag->name, "--strong") == 0;
    return DSC_OK;
}

#define AT(field) offsetof(scale, field)
static const dsc_flag rows[] = {
    { "--ranks", NULL, "LIST", DSC_FLAG_CALL, 0, .set = set_ranks,
      .help = "numbers of ranks to measure, rising; default 1,2,4" },
    { "--weak", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_mode,
      .help = "keep the work of each rank, so that the batch grows; the default" },
    { "--strong", NULL, NULL, DSC_FLAG_SWITCH, 0, .set = set_mode, .help = "keep the batch, which the ranks share" },
    { "--repeat", NULL, "N", DSC_FLAG_INTEGER, AT(repeat), .min = 1, .max = 100,
      .help = "runs of each number of ranks; default 1" },
    { "-o", "--out", "TABLE.json", DSC_FLAG_TEXT, AT(out), .help = "also write the table as JSON" },
    { "--svg", NULL, "FILE.svg", DSC_FLAG_TEXT, AT(svg), .help = "also draw the speed as a picture" },
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print the table as JSON" },
};
static const dsc_flag_command page = {
    .name = "dsc scale",
    .description = "Measures how fast a config trains on several numbers of ranks, by short real runs in alternation.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .shared = { trial_flags, TRIAL_FLAG_ROWS, AT(setup) },
    .exit_codes = "0 done; 1 failed; 2 wrong command line or config, or no run ended well",
};

static dsc_status run(scale *s, dsc_error *err)
{
    const char *const outputs[] = { s->out, s->svg }, *const config = s->setup.path;
    for (size_t i = 0; i < DSC_COUNT(outputs); i++)
        if (outputs[i] != NULL)
            DSC_TRY(dsc_io_refuse_input(outputs[i], &config, 1, err));
    dsc_status status = trial_open(&s->setup, err);
    if (status == DSC_OK)
        status = read_batch(s, err);
    for (int i = 0; i < s->row_count && status == DSC_OK; i++)
        (void)scaling_share_batch(&s->batch, s->strong, s->row[i].ranks, &s->row[i].micro_batch,
                                  &s->row[i].accumulation, s->row[i].result.why, sizeof s->row[i].result.why);
    if (status == DSC_OK)
        status = measure(s, err);
    const dsc_status closed = trial_close(&s->setup, status == DSC_OK ? err : NULL);
    DSC_TRY(status);
    DSC_TRY(closed);
    return tell(s, err);
}

int dsc_cmd_scale(int argc, char **argv)
{
    scale s = { .setup = TRIAL_SETUP_INIT, .repeat = 1, .row_count = 3 };
    dsc_error err = DSC_ERROR_INIT;
    s.row = calloc(SCALING_ROWS_MAX, sizeof *s.row);
    if (s.row == NULL)
        return dsc_tool_usage("dsc scale", "out of host memory");
    for (int i = 0; i < s.row_count; i++)
        s.row[i].ranks = INT64_C(1) << i;
    int code = dsc_tool_parse(&page, argc, argv, &s);
    if (code < 0) {
        const dsc_status status = run(&s, &err);
        code = status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
    }
    free(s.row);
    return code;
}
