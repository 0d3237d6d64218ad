/* page.h - the page of a run for a browser: curves, ranks, the last lines of the log. The server (http.c) renders the
 * page per request; no function here locks or allocates. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_PAGE_H
#define DSC_ENGINE_MONITOR_PAGE_H

#include "engine/monitor/monitor.h"

enum { DSC_PAGE_POINTS = 512, DSC_PAGE_LINES = 50, DSC_PAGE_LINE_BYTES = 240 };
enum { DSC_PAGE_LOSS, DSC_PAGE_NORM, DSC_PAGE_LR, DSC_PAGE_SPEED, DSC_PAGE_VALIDATION, DSC_PAGE_SERIES };

/* Means over `stride` values each: when there is no room for another, neighbours become one. */
typedef struct dsc_page_series {
    double step[DSC_PAGE_POINTS], value[DSC_PAGE_POINTS]; /* last step; mean value */
    int count;
    int64_t stride;
    double open_sum; /* sum of the unfinished point */
    int64_t open_count;
    double last;
} dsc_page_series;

typedef struct dsc_page {
    dsc_page_series series[DSC_PAGE_SERIES];
    char about[1024]; /* members of a JSON object, without braces */
    int64_t batch;    /* samples of a step */
    int64_t step, first_step; /* since this start of the program; 0: none yet */
    int64_t started_ns, updated_ns;
    int32_t rank_count;
    const char *hosts; /* [rank_count][DSC_MONITOR_HOST_BYTES], borrowed */
    dsc_monitor_rank rank[DSC_MONITOR_RANKS_MAX];
    char line[DSC_PAGE_LINES][DSC_PAGE_LINE_BYTES];
    int64_t line_count; /* ever */
} dsc_page;

void dsc_page_describe(dsc_page *page, const dsc_monitor_about *about);
void dsc_page_scalars(dsc_page *page, int64_t samples, const dsc_scalar *scalars, int count);
void dsc_page_ranks(dsc_page *page, const dsc_monitor_rank *ranks, int32_t count);
void dsc_page_log(dsc_page *page, dsc_log_level level, const char *text);

/* Everything as JSON into out[capacity]; returns its bytes, 0 when it has no room. */
size_t dsc_page_json(const dsc_page *page, char *out, size_t capacity);
/* The document that asks for it, every two seconds, as "run.json". */
extern const char dsc_page_html[];

#endif
