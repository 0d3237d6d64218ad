/* plot.c - `dsc plot RUN.jsonl...`: curves of the logs that train --log writes, as an SVG picture.
 *
 * A log that a resumed run went on with holds some steps twice; the later line counts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json.h"
#include "tools/dsc/tool.h"

enum { LOG_BYTES_MAX = 1 << 30, LINE_BYTES_MAX = 1 << 16, LINE_MEMBERS_MAX = 200 };

/* What a line of the log has, and how a panel of it is called. */
enum { LOSS, LR, GRAD_NORM, TOKENS_PER_S, STEP_MS, LOSS_SCALE, TOKENS, SERIES, STEP = SERIES };
static const struct { const char *key, *title; } series[SERIES] = {
    [LOSS] = { "loss", "loss" },
    [LR] = { "lr", "learning rate" },
    [GRAD_NORM] = { "grad_norm", "gradient norm" },
    [TOKENS_PER_S] = { "tokens_per_s", "tokens per second" },
    [STEP_MS] = { "step_ms", "ms per step" },
    [LOSS_SCALE] = { "loss_scale", "loss scale" },
    [TOKENS] = { "tokens", "tokens" },
};

typedef struct run {
    const char *path;
    int64_t count, room;
    double *value[SERIES + 1]; /* by series; then the step */
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

/* ---- reading ---- */

static dsc_status make_room(const settings *s, run *r, dsc_error *err)
{
    if (r->count < r->room)
        return DSC_OK;
    const int64_t room = r->room > 0 ? 2 * r->room : 1024;
    for (int i = 0; i <= SERIES; i++) {
        double *more = NULL;
        DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, room, sizeof *more, &more, err));
        if (r->count > 0)
            memcpy(more, r->value[i], sizeof *more * (size_t)r->count);
        dsc_alloc_free(s->alloc, r->value[i]);
        r->value[i] = more;
    }
    r->room = room;
    return DSC_OK;
}

static dsc_status add_line(const settings *s, run *r, const char *where, const char *text, int64_t bytes,
                           dsc_error *err)
{
    static const dsc_json_limits limits = { LINE_BYTES_MAX, 4, LINE_MEMBERS_MAX };
    dsc_json *json = NULL;
    DSC_TRY(dsc_json_open(s->alloc, where, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const cJSON *root = dsc_json_root(json), *step = cJSON_GetObjectItemCaseSensitive(root, "step");
    dsc_status status = DSC_OK;
    if (!cJSON_IsNumber(step))
        status = DSC_FAIL(err, DSC_ERR_INPUT, where, "no \"step\" here; expected a log of train --log");
    while (status == DSC_OK && r->count > 0 && r->value[STEP][r->count - 1] >= step->valuedouble)
        r->count--;
    if (status == DSC_OK)
        status = make_room(s, r, err);
    for (int i = 0; status == DSC_OK && i < SERIES; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, series[i].key);
        r->value[i][r->count] = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    }
    if (status == DSC_OK)
        r->value[STEP][r->count++] = step->valuedouble;
    dsc_json_close(&json);
    return status;
}

static dsc_status read_run(const settings *s, run *r, dsc_error *err)
{
    char *text = NULL;
    int64_t bytes, line = 1;
    DSC_TRY(dsc_io_read_all(NULL, s->alloc, r->path, LOG_BYTES_MAX, &text, &bytes, err));
    dsc_status status = DSC_OK;
    for (const char *at = text; status == DSC_OK && at < text + bytes; line++) {
        const char *end = memchr(at, '\n', (size_t)(text + bytes - at));
        char where[1100];
        if (end == NULL)
            break; /* a line that is being written */
        snprintf(where, sizeof where, "%s:%lld", r->path, (long long)line);
        if (end > at)
            status = add_line(s, r, where, at, end - at, err);
        at = end + 1;
    }
    dsc_alloc_free(s->alloc, text);
    if (status == DSC_OK && r->count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->path, "no step in it yet");
    return status;
}

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
    for (int64_t i = 0; i < r->count && strcmp(x, "step") != 0; i++) {
        const double each = strcmp(x, "tokens") == 0 ? r->value[TOKENS][i] : r->value[STEP_MS][i] / 3.6e6;
        sum += isfinite(each) && each > 0 ? each : 0;
        r->value[STEP][i] = sum;
    }
}

static void fill_panels(settings *s, plot_panel *panels)
{
    for (int p = 0; p < s->panel_count; p++) {
        const int of = s->panel[p];
        panels[p] = (plot_panel){ .title = series[of].title,
                                  .x_title = strcmp(s->x, "time") == 0 ? "hours" : s->x,
                                  .curve_count = s->run_count,
                                  .log_y = s->log_y && of != LR };
        for (int c = 0; c < s->run_count; c++)
            panels[p].curve[c] = (plot_curve){ s->runs[c].path, s->runs[c].value[STEP], s->runs[c].value[of],
                                               s->runs[c].count };
    }
}

static dsc_status draw(settings *s, dsc_error *err)
{
    plot_panel panels[PLOT_PANELS_MAX];
    char *text = NULL;
    size_t bytes = 0;
    for (int i = 0; i < s->run_count; i++) {
        DSC_TRY(read_run(s, &s->runs[i], err));
        set_x(&s->runs[i], s->x);
        s->runs[i].last_loss = s->runs[i].value[LOSS][s->runs[i].count - 1];
        for (int of = 0; of < SERIES && s->smooth > 0; of++)
            if (of != LR && of != TOKENS)
                smooth(s->runs[i].value[of], s->runs[i].count, s->smooth);
    }
    fill_panels(s, panels);
    FILE *out = open_memstream(&text, &bytes);
    if (out != NULL)
        plot_write_svg(out, panels, s->panel_count);
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return DSC_FAIL(err, DSC_ERR_NOMEM, s->out, "no memory for the picture");
    }
    const dsc_status status = strcmp(s->out, "-") == 0
                                  ? (fwrite(text, 1, bytes, stdout) == bytes ? DSC_OK : DSC_ERR_IO)
                                  : dsc_io_write_all_atomic(NULL, s->out, text, (int64_t)bytes, err);
    free(text);
    return status;
}

/* ---- the command line ---- */

static bool add_panel(settings *s, const char *key)
{
    for (int i = 0; i < SERIES; i++)
        if (strcmp(series[i].key, key) == 0 && s->panel_count < PLOT_PANELS_MAX) {
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
    static const int usual[] = { LOSS, GRAD_NORM, LR, TOKENS_PER_S };
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
            printf("%s: %s, %lld steps, loss %.4f at the end\n", s.out, s.runs[i].path, (long long)s.runs[i].count,
                   s.runs[i].last_loss);
    for (int i = 0; i < s.run_count; i++)
        for (int of = 0; of <= SERIES; of++)
            dsc_alloc_free(s.alloc, s.runs[i].value[of]);
    dsc_alloc_close(&s.alloc);
    return status == DSC_OK ? dsc_tool_end() : dsc_tool_fail(&err);
}
