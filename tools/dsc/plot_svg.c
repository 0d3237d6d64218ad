/* plot_svg.c - see plot.h. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/formats/utf8.h"
#include "base/io.h"
#include "tools/dsc/plot.h"

/* In pixels. */
enum { PANEL_WIDTH = 560, PANEL_HEIGHT = 330, LEFT = 74, RIGHT = 30, TOP = 34, BOTTOM = 46, LEGEND_ROW = 20,
       TICKS_WANTED = 6 };

/* Okabe and Ito's colours, which the colour-blind tell apart too. */
static const char *const colours[] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
                                       "#999933" };
static const char *colour_of(int curve) { return colours[(size_t)curve % (sizeof colours / sizeof colours[0])]; }

/* One panel's window: values low..high shown over pixels from..to. */
typedef struct axis {
    double low, high, from, to;
    bool logarithmic;
} axis;

static double place(const axis *a, double value)
{
    const double low = a->logarithmic ? log10(a->low) : a->low, high = a->logarithmic ? log10(a->high) : a->high;
    const double at = a->logarithmic ? log10(value) : value;
    return a->from + (at - low) / (high - low) * (a->to - a->from);
}

/* A name may hold anything: what XML cannot is shown as "?". */
static void write_text(FILE *out, const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        const int bytes = dsc_utf8_char_bytes(text, end);
        if (*text == '&' || *text == '<')
            fputs(*text == '&' ? "&amp;" : "&lt;", out);
        else if (bytes == 0 || (unsigned char)*text < 32 || *text == 127)
            fputc('?', out);
        else
            fwrite(text, 1, (size_t)bytes, out);
        text += bytes > 0 ? bytes : 1;
    }
}

/* ---- ranges and ticks ---- */

static bool usable(const plot_panel *p, double value) { return isfinite(value) && (!p->log_y || value > 0); }

static void find_ranges(const plot_panel *p, axis *x, axis *y)
{
    x->low = y->low = DBL_MAX;
    x->high = y->high = -DBL_MAX;
    for (int c = 0; c < p->curve_count; c++)
        for (int64_t i = 0; i < p->curve[c].count; i++) {
            x->low = fmin(x->low, p->curve[c].x[i]);
            x->high = fmax(x->high, p->curve[c].x[i]);
            if (usable(p, p->curve[c].y[i])) {
                y->low = fmin(y->low, p->curve[c].y[i]);
                y->high = fmax(y->high, p->curve[c].y[i]);
            }
        }
    if (x->low > x->high)
        x->low = 0, x->high = 1;
    if (y->low > y->high)
        y->low = p->log_y ? 1 : 0, y->high = p->log_y ? 10 : 1;
    if (x->low >= x->high)
        x->low -= 0.5, x->high += 0.5;
    if (p->log_y) {
        const double room = y->high > y->low ? pow(y->high / y->low, 0.05) : 1.5;
        y->low /= room, y->high *= room;
    } else {
        const double room = y->high > y->low ? 0.05 * (y->high - y->low) : fmax(fabs(y->high) * 0.1, 1e-12);
        y->low -= room, y->high += room;
    }
}

/* 1, 2 or 5 times a power of ten. */
static double tick_step(double span)
{
    const double raw = span / TICKS_WANTED, power = pow(10, floor(log10(raw)));
    return raw / power <= 1 ? power : raw / power <= 2 ? 2 * power : raw / power <= 5 ? 5 * power : 10 * power;
}

static void tick_label(double value, double step, char out[32])
{
    const double size = fabs(value);
    static const struct { double from; const char *letter; } units[] = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" } };
    if (size < step * 1e-6) {
        snprintf(out, 32, "0");
        return;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (size >= units[i].from) {
            snprintf(out, 32, "%.6g%s", value / units[i].from, units[i].letter);
            return;
        }
    snprintf(out, 32, "%.*g", size >= 1e5 ? 7 : 6, value);
}

static void write_tick(FILE *out, const axis *x, const axis *y, bool of_x, double value, double step)
{
    char label[32];
    tick_label(value, step, label);
    if (of_x) {
        const double at = place(x, value);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", at, y->to, y->from);
        fprintf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", at, y->from + 16,
                label);
    } else {
        const double at = place(y, value);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", x->from, at, x->to);
        fprintf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", x->from - 6, at + 4,
                label);
    }
}

/* Powers of ten, with 2 and 5 between them where there are few. */
static void write_log_ticks(FILE *out, const axis *x, const axis *y)
{
    static const double steps[] = { 1, 2, 5 };
    const double decades = log10(y->high / y->low);
    const double every = fmax(1, ceil(decades / TICKS_WANTED));
    for (double power = floor(log10(y->low)); power <= log10(y->high); power += decades < 3 ? 1 : every)
        for (size_t i = 0; i < (decades < 3 ? sizeof steps / sizeof steps[0] : 1); i++) {
            const double value = steps[i] * pow(10, power);
            if (value >= y->low && value <= y->high)
                write_tick(out, x, y, false, value, 0);
        }
}

static void write_axes(FILE *out, const plot_panel *p, const axis *x, const axis *y)
{
    const double x_step = fmax(tick_step(x->high - x->low), 1e-9), y_step = tick_step(y->high - y->low);
    for (double v = ceil(x->low / x_step); v <= floor(x->high / x_step + 1e-9); v++)
        write_tick(out, x, y, true, v * x_step, x_step);
    if (p->log_y)
        write_log_ticks(out, x, y);
    else
        for (double v = ceil(y->low / y_step); v <= floor(y->high / y_step + 1e-9); v++)
            write_tick(out, x, y, false, v * y_step, y_step);
    fprintf(out, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">", x->from, y->to - 12);
    write_text(out, p->title);
    fprintf(out, "</text>\n<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (x->from + x->to) / 2,
            y->from + 34);
    write_text(out, p->x_title);
    fputs("</text>\n", out);
}

/* ---- curves ---- */

/* The points of one column of pixels. */
typedef struct column {
    double x, sum, low, high;
    int64_t count;
} column;

static int64_t gather_columns(const plot_panel *p, const plot_curve *curve, const axis *x, column *columns)
{
    int64_t used = 0, last = -1;
    for (int64_t i = 0; i < curve->count; i++) {
        if (!usable(p, curve->y[i]))
            continue;
        const double at = place(x, curve->x[i]), value = curve->y[i];
        const int64_t pixel = (int64_t)(at - x->from);
        if (pixel != last || used == 0)
            columns[used++] = (column){ .low = value, .high = value };
        last = pixel;
        column *c = &columns[used - 1];
        c->x += at;
        c->sum += value;
        c->low = fmin(c->low, value);
        c->high = fmax(c->high, value);
        c->count++;
    }
    return used;
}

static void write_curve(FILE *out, const plot_panel *p, int number, const axis *x, const axis *y)
{
    column columns[PANEL_WIDTH + 2];
    const int64_t count = gather_columns(p, &p->curve[number], x, columns);
    bool band = false;
    for (int64_t i = 0; i < count; i++)
        band |= columns[i].count > 1;
    if (band) {
        fprintf(out, "<path class=\"band\" fill=\"%s\" d=\"", colour_of(number));
        for (int64_t i = 0; i < count; i++)
            fprintf(out, "%s%.1f %.1f", i == 0 ? "M" : "L", columns[i].x / (double)columns[i].count,
                    place(y, columns[i].high));
        for (int64_t i = count - 1; i >= 0; i--)
            fprintf(out, "L%.1f %.1f", columns[i].x / (double)columns[i].count, place(y, columns[i].low));
        fputs("Z\"/>\n", out);
    }
    if (count == 1)
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
                columns[0].x / (double)columns[0].count, place(y, columns[0].sum / (double)columns[0].count),
                colour_of(number));
    if (count < 2)
        return;
    fprintf(out, "<path class=\"curve\" stroke=\"%s\" d=\"", colour_of(number));
    for (int64_t i = 0; i < count; i++)
        fprintf(out, "%s%.1f %.1f", i == 0 ? "M" : "L", columns[i].x / (double)columns[i].count,
                place(y, columns[i].sum / (double)columns[i].count));
    fputs("\"/>\n", out);
}

static void write_panel(FILE *out, const plot_panel *p, double left, double top)
{
    axis x = { .from = left + LEFT, .to = left + PANEL_WIDTH - RIGHT };
    axis y = { .from = top + PANEL_HEIGHT - BOTTOM, .to = top + TOP, .logarithmic = p->log_y };
    find_ranges(p, &x, &y);
    write_axes(out, p, &x, &y);
    for (int c = 0; c < p->curve_count; c++)
        write_curve(out, p, c, &x, &y);
    fprintf(out, "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x.from, y.to,
            x.to - x.from, y.from - y.to);
}

void plot_write_svg(FILE *out, const plot_panel *panels, int panel_count)
{
    const int across = panel_count > 4 ? 3 : panel_count > 1 ? 2 : 1, down = (panel_count + across - 1) / across;
    const int names = panels[0].curve_count;
    const int width = across * PANEL_WIDTH, height = down * PANEL_HEIGHT + names * LEGEND_ROW + 12;
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n", width, height, width, height);
    fputs("<style>.grid{stroke:#e2e2e2;fill:none}.frame{stroke:#888;fill:none}.curve{fill:none;stroke-width:1.6;"
          "stroke-linejoin:round}.band{opacity:.18;stroke:none}.tick{font-size:11px;fill:#444}.axis{font-size:12px;"
          "fill:#444}.title{font-size:14px;font-weight:bold;fill:#222}.name{font-size:13px;fill:#222}</style>\n", out);
    fprintf(out, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
    for (int i = 0; i < panel_count; i++)
        write_panel(out, &panels[i], i % across * PANEL_WIDTH, i / across * PANEL_HEIGHT);
    for (int c = 0; c < names; c++) {
        const int at = down * PANEL_HEIGHT + c * LEGEND_ROW + 8;
        fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"22\" height=\"4\" fill=\"%s\"/>", LEFT, at - 4, colour_of(c));
        fprintf(out, "<text class=\"name\" x=\"%d\" y=\"%d\">", LEFT + 30, at + 2);
        write_text(out, panels[0].curve[c].name);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
}

dsc_status plot_save_svg(const char *path, const plot_panel *panels, int panel_count, dsc_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out != NULL)
        plot_write_svg(out, panels, panel_count);
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return DSC_FAIL(err, DSC_ERR_NOMEM, path, "no memory for the picture");
    }
    dsc_status status = DSC_OK;
    if (strcmp(path, "-") != 0)
        status = dsc_io_write_all_atomic(NULL, path, text, (int64_t)bytes, err);
    else if (fwrite(text, 1, bytes, stdout) != bytes)
        status = DSC_FAIL(err, DSC_ERR_IO, "stdout", "%s", strerror(errno));
    free(text);
    return status;
}
