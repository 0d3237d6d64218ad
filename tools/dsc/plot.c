/* plot.c - `dsc plot RUN.jsonl...`: curves of the logs that train --log writes, as an SVG picture.
 *
 * A log that a resumed run went on with holds some steps twice; the later line counts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static bool add_panel(settings *s, const char *key)
{
    for (int i = 0; i < RUN_LOG_SERIES; i++)
        if (strcmp(run_log_series[i].key, key) == 0 && s->panel_count < PLOT_PANELS_MAX) {
            s->panel[s->panel_count++] = i;
            return true;
        }
    (void)dsc_tool_usage("--y", "\"%.40s\" is unknown; what a log has: loss, lr, grad_norm, tokens_per_s, step_ms, "
                         "loss_scale, tokens (at most %d)", key, PLOT_PANELS_MAX);
    return false;
}

static bool parse_smooth(settings *s, const char *text)
{
    char *end;
    s->smooth = strtod(text, &end);
    if (end != text && *end == 0 && s->smooth >= 0 && s->smooth < 1)
        return true;
    (void)dsc_tool_usage("--smooth", "\"%.40s\" is not a number from 0 to below 1", text);
    return false;
}

static bool parse(settings *s, int argc, char **argv)
{
    const char *value;
    for (int i = 1; i < argc; i++) {
        if ((value = dsc_tool_flag("--y", argc, argv, &i)) != NULL) {
            if (!add_panel(s, value))
                return false;
        } else if ((value = dsc_tool_flag("--x", argc, argv, &i)) != NULL) {
            s->x = value;
            if (strcmp(value, "step") != 0 && strcmp(value, "tokens") != 0 && strcmp(value, "time") != 0)
                return dsc_tool_usage("--x", "\"%.40s\" is unknown; step, tokens and time work", value) == 0;
        } else if ((value = dsc_tool_flag("--smooth", argc, argv, &i)) != NULL) {
            if (!parse_smooth(s, value))
                return false;
        } else if ((value = dsc_tool_flag("-o", argc, argv, &i)) != NULL) {
            s->out = value;
        } else if (strcmp(argv[i], "--log") == 0) {
            s->log_y = true;
        } else if (argv[i][0] == '-' && argv[i][1] != 0) {
            return dsc_tool_usage(argv[i], "unknown argument of \"dsc plot\"") == 0;
        } else if (s->run_count == PLOT_CURVES_MAX) {
            return dsc_tool_usage(argv[i], "at most %d runs fit into a picture", PLOT_CURVES_MAX) == 0;
        } else {
            s->runs[s->run_count++].path = argv[i];
        }
    }
    if (s->run_count == 0 || s->out[0] == 0)
        return dsc_tool_usage("plot", "expected \"dsc plot RUN.jsonl... [-o FILE.svg] [--y loss]... "
                              "[--x step|tokens|time] [--smooth 0.9] [--log]\", with logs of train --log") == 0;
    return true;
}

int dsc_cmd_plot(int argc, char **argv)
{
    static const int usual[] = { RUN_LOG_LOSS, RUN_LOG_GRAD_NORM, RUN_LOG_LR, RUN_LOG_TOKENS_PER_S };
    settings s = { .out = "plot.svg", .x = "step" };
    dsc_error err = DSC_ERROR_INIT;
    if (!parse(&s, argc, argv))
        return 2;
    if (s.panel_count == 0)
        memcpy(s.panel, usual, sizeof usual), s.panel_count = DSC_COUNT(usual);
    dsc_status status = dsc_alloc_open(&s.alloc, &err);
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
