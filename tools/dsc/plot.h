/* plot.h - curves of runs as a picture. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_PLOT_H
#define DSC_TOOLS_PLOT_H

#include <stdio.h>

#include <dsc/error.h>

enum { PLOT_CURVES_MAX = 16, PLOT_PANELS_MAX = 9 };

/* Points of one run in the order of x; y may be NaN: a gap. */
typedef struct plot_curve {
    const char *name;
    const double *x, *y;
    int64_t count;
} plot_curve;

typedef struct plot_panel {
    const char *title;
    const char *x_title;
    plot_curve curve[PLOT_CURVES_MAX];
    int curve_count;
    bool log_y; /* values that are not above 0 are gaps */
} plot_panel;

/* One SVG 1.1 document with the panels in a grid; all names are escaped. If points are denser than pixels, the line is
 * their mean, and a band behind it spans their extremes. Errors of writing stay in the stream. */
void plot_write_svg(FILE *out, const plot_panel *panels, int panel_count);
/* Writes the document as a file that is whole or absent; "-": standard output. */
DSC_MUST_USE dsc_status plot_save_svg(const char *path, const plot_panel *panels, int panel_count, dsc_error *err);

#endif
