/* plot.c - `dsc plot RUN.jsonl...`: curves of the logs that train --log writes, as an SVG picture.
 *
 * A log that a resumed run went on with holds some steps twice; the later line counts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "tools/dsc/run_log.h"
#include "tools/dsc/tool.h"

typedef struct run {
    const char *path;
    run_log log;
    double last_loss;
} run;

typedef struct settings {
    const char *out, *x;
    double smooth;
    bool log_y;
    int panel[PLOT_PANELS_MAX], panel_count;
    dsc_flag_list paths;
    run runs[PLOT_CURVES_MAX];
    int run_count;
    dsc_alloc *alloc;
} settings;

/* ---- what is drawn ---- */

/* Exponential mean, corrected for its start, as TensorBoard smooths; gaps stay gaps. */
static void smooth(double *value, int64_t count, double weight)
{
    double mean = 0, share = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(value[i]))
            continue;
        mean = weight * mean + (1 - weight) * value[i];
        share = weight * share + (1 - weight);
        value[i] = mean / share;
    }
}

/* Steps become tokens or hours, summed up. */
static void set_x(run *r, const char *x)
{
    double sum = 0;
    for (int64_t i = 0; i < r->log.count && strcmp(x, "step") != 0; i++) {
        const double each =
            strcmp(x, "tokens") == 0 ? r->log.value[RUN_LOG_TOKENS][i] : r->log.value[RUN_LOG_STEP_MS][i] / 3.6e6;
        sum += isfinite(each) && each > 0 ? each : 0;
        r->log.value[RUN_LOG_STEP][i] = sum;
    }
}

static void fill_panels(settings *s, plot_panel *panels)
{
    for (int p = 0; p < s->panel_count; p++) {
        const int of = s->panel[p];
        panels[p] = (plot_panel){ .title = run_log_series[of].title,
                                  .x_title = strcmp(s->x, "time") == 0 ? "hours" : s->x,
                                  .curve_count = s->run_count,
                                  .log_y = s->log_y && of != RUN_LOG_LR };
        for (int c = 0; c < s->run_count; c++) {
            const run_log *log = &s->runs[c].log;
            panels[p].curve[c] =
                (plot_curve){ s->runs[c].path, log->value[RUN_LOG_STEP], log->value[of], log->count };
        }
    }
}

static dsc_status draw(settings *s, dsc_error *err)
{
    plot_panel panels[PLOT_PANELS_MAX];
    for (int i = 0; i < s->run_count; i++) {
        DSC_TRY(run_log_read(s->alloc, s->runs[i].path, &s->runs[i].log, err));
        set_x(&s->runs[i], s->x);
        s->runs[i].last_loss = s->runs[i].log.value[RUN_LOG_LOSS][s->runs[i].log.count - 1];
        for (int of = 0; of < RUN_LOG_SERIES && s->smooth > 0; of++)
            if (of != RUN_LOG_LR && of != RUN_LOG_TOKENS)
                smooth(s->runs[i].log.value[of], s->runs[i].log.count, s->smooth);
    }
    fill_panels(s, panels);
    return plot_save_svg(s->out, panels, s->panel_count, err);
}

/* ---- the command line ---- */

static dsc_status add_panel(void *out, const dsc_flag *flag, const char *key, dsc_error *err)
{
    settings *s = out;
    for (int i = 0; i < RUN_LOG_SERIES; i++)
        if (strcmp(run_log_series[i].key, key) == 0 && s->panel_count < PLOT_PANELS_MAX) {
            s->panel[s->panel_count++] = i;
            return DSC_OK;
        }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name,
                    "\"%.40s\" is unknown; expected loss, lr, grad_norm, tokens_per_s, "
                    "step_ms, data_wait_ms, loss_scale or tokens, at most %d of them",
                    key, PLOT_PANELS_MAX);
}

static dsc_status set_smooth(void *out, const dsc_flag *flag, const char *text, dsc_error *err)
{
    settings *s = out;
    char *end;
    s->smooth = strtod(text, &end);
    if (end != text && *end == 0 && s->smooth >= 0 && s->smooth < 1)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.40s\" is not a number from 0 to below 1", text);
}

#define AT(field) offsetof(settings, field)
static const char *const x_choices[] = { "step", "tokens", "time", NULL };
static const dsc_flag rows[] = {
    { "-o", "--out", "FILE.svg", DSC_FLAG_TEXT, AT(out), .help = "picture to write, - for stdout; default plot.svg" },
    { "--y", NULL, "NAME", DSC_FLAG_CALL, 0, .set = add_panel,
      .help = "value to draw, once for each panel: loss, lr, grad_norm, tokens_per_s, step_ms, data_wait_ms, "
              "loss_scale or tokens" },
    { "--x", NULL, "NAME", DSC_FLAG_CHOICE, AT(x), .choices = x_choices,
      .help = "horizontal axis: step, the default, tokens or time" },
    { "--smooth", NULL, "W", DSC_FLAG_CALL, 0, .set = set_smooth,
      .help = "weight of the exponential mean, 0 to below 1; default 0 draws the values themselves" },
    { "--log", NULL, NULL, DSC_FLAG_BOOL, AT(log_y), .help = "logarithmic vertical axis" },
};
static const dsc_positional logs[] = { { "RUN.jsonl", "logs of train --log", "log", AT(paths), 1, 0 } };
static const dsc_flag_command page = {
    .name = "dsc plot", .description = "Draws the curves of logs that train --log wrote, as an SVG picture.",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = logs, .positional_count = 1,
};

int dsc_cmd_plot(int argc, char **argv)
{
    static const int usual[] = { RUN_LOG_LOSS, RUN_LOG_GRAD_NORM, RUN_LOG_LR, RUN_LOG_TOKENS_PER_S };
    const char *paths[PLOT_CURVES_MAX];
    settings s = { .out = "plot.svg", .x = "step", .paths = { paths, 0, PLOT_CURVES_MAX } };
    dsc_error err = DSC_ERROR_INIT;
    const int code = dsc_tool_parse(&page, argc, argv, &s);
    if (code >= 0)
        return code;
    for (int32_t i = 0; i < s.paths.count; i++)
        s.runs[s.run_count++].path = paths[i];
    if (s.panel_count == 0)
        memcpy(s.panel, usual, sizeof usual), s.panel_count = DSC_COUNT(usual);
    dsc_status status = dsc_alloc_open(&s.alloc, &err);
    if (status == DSC_OK)
        status = dsc_io_refuse_input(s.out, paths, s.paths.count, &err);
    if (status == DSC_OK)
        status = draw(&s, &err);
    if (status == DSC_OK && strcmp(s.out, "-") != 0)
        for (int i = 0; i < s.run_count; i++)
            printf("%s: %s, %lld steps, loss %.4f at the end\n", s.out, s.runs[i].path, (long long)s.runs[i].log.count,
                   s.runs[i].last_loss);
    for (int i = 0; i < s.run_count; i++)
        run_log_free(s.alloc, &s.runs[i].log);
    dsc_alloc_close(&s.alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
