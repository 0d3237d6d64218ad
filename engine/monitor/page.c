/* page.c - see page.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/formats/json.h"

static const struct { const char *tag, *name; } series[DSC_PAGE_SERIES] = {
    [DSC_PAGE_LOSS] = { "Train/Samples/train_loss", "loss" },
    [DSC_PAGE_NORM] = { "Train/Samples/grad_norm", "gradient norm" },
    [DSC_PAGE_LR] = { "Train/Samples/lr", "learning rate" },
    [DSC_PAGE_SPEED] = { "Train/Samples/tokens_per_second", "tokens per second" },
    [DSC_PAGE_VALIDATION] = { "Validation/Samples/loss", "validation loss" },
};

/* ---- taking in ---- */

static void halve(dsc_page_series *s)
{
    for (int i = 0; i < DSC_PAGE_POINTS / 2; i++) {
        s->step[i] = s->step[2 * i + 1];
        s->value[i] = (s->value[2 * i] + s->value[2 * i + 1]) / 2;
    }
    s->count = DSC_PAGE_POINTS / 2;
    s->stride *= 2;
}

static void add(dsc_page_series *s, double step, double value)
{
    s->stride = dsc_max_i64(s->stride, 1);
    s->last = value;
    s->open_sum += value;
    if (++s->open_count == s->stride && s->count == DSC_PAGE_POINTS)
        halve(s);
    if (s->open_count < s->stride)
        return;
    s->step[s->count] = step;
    s->value[s->count++] = s->open_sum / (double)s->open_count;
    s->open_sum = 0;
    s->open_count = 0;
}

void dsc_page_scalars(dsc_page *page, int64_t samples, const dsc_scalar *scalars, int count)
{
    const int64_t step = samples / dsc_max_i64(page->batch, 1);
    for (int i = 0; i < count; i++)
        for (int of = 0; of < DSC_PAGE_SERIES; of++)
            if (strcmp(scalars[i].tag, series[of].tag) == 0)
                add(&page->series[of], (double)step, scalars[i].value);
    page->step = step;
    page->first_step = page->first_step > 0 ? page->first_step : step;
    page->updated_ns = dsc_clock_wall_ns();
}

void dsc_page_ranks(dsc_page *page, const dsc_monitor_rank *ranks, int32_t count)
{
    memcpy(page->rank, ranks, sizeof *ranks * (size_t)dsc_min_i64(count, DSC_MONITOR_RANKS_MAX));
}

void dsc_page_log(dsc_page *page, dsc_log_level level, const char *text)
{
    static const char *const words[] = { "error: ", "warning: ", "", "" };
    char *line = page->line[page->line_count++ % DSC_PAGE_LINES];
    snprintf(line, DSC_PAGE_LINE_BYTES, "%s%s", words[level], text);
    dsc_text_printable(line);
}

/* ---- giving out ---- */

typedef struct writer {
    char *out;
    size_t capacity, used; /* used > capacity: it did not fit */
} writer;

static void DSC_PRINTF(2, 3) put(writer *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int bytes = vsnprintf(w->used < w->capacity ? w->out + w->used : NULL,
                                w->used < w->capacity ? w->capacity - w->used : 0, fmt, args);
    va_end(args);
    w->used += bytes > 0 ? (size_t)bytes : 0;
}

static void put_number(writer *w, double value)
{
    if (isfinite(value))
        put(w, "%.6g", value);
    else
        put(w, "null");
}

static void put_text(writer *w, const char *text)
{
    char quoted[6 * DSC_PAGE_LINE_BYTES];
    (void)dsc_json_quote(quoted, sizeof quoted, text);
    put(w, "%s", quoted);
}

void dsc_page_describe(dsc_page *page, const dsc_monitor_about *about)
{
    const struct { const char *name, *text; } texts[] = {
        { "model", about->model }, { "transport", about->transport }, { "device", about->device },
        { "numerics", about->numerics },
    };
    writer w = { page->about, sizeof page->about, 0 };
    put(&w, "\"version\":\"%s\",\"zero_stage\":%d,\"ranks\":%d,\"batch\":%lld,\"steps\":%lld", DSC_VERSION_TEXT,
        (int)about->zero_stage, (int)about->ranks, (long long)about->batch, (long long)about->steps);
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        put(&w, ",\"%s\":", texts[i].name);
        put_text(&w, texts[i].text);
    }
    if (w.used >= w.capacity) /* a name of hundreds of letters */
        page->about[0] = 0;
    page->batch = about->batch;
    page->rank_count = about->ranks;
    page->hosts = about->hosts;
    page->started_ns = page->updated_ns = dsc_clock_wall_ns();
}

static void put_series(writer *w, const dsc_page_series *s, const char *name, int64_t step)
{
    put(w, "{\"name\":\"%s\",\"last\":", name);
    put_number(w, s->count > 0 || s->open_count > 0 ? s->last : NAN);
    put(w, ",\"step\":[");
    for (int i = 0; i < s->count; i++)
        put(w, "%s%.0f", i > 0 ? "," : "", s->step[i]);
    if (s->open_count > 0)
        put(w, "%s%lld", s->count > 0 ? "," : "", (long long)step);
    put(w, "],\"value\":[");
    for (int i = 0; i < s->count; i++) {
        put(w, "%s", i > 0 ? "," : "");
        put_number(w, s->value[i]);
    }
    if (s->open_count > 0) {
        put(w, "%s", s->count > 0 ? "," : "");
        put_number(w, s->open_sum / (double)s->open_count);
    }
    put(w, "]}");
}

static void put_rank(writer *w, const dsc_monitor_rank *rank, const char *host)
{
    const struct { const char *name; double value; } members[] = {
        { "loss", rank->loss }, { "work_ms", rank->work_ms }, { "data_ms", rank->data_ms },
        { "memory_mb", rank->memory_mb }, { "gpu_watts", rank->gpu.watts }, { "gpu_busy", rank->gpu.busy_percent },
        { "gpu_used_mb", rank->gpu.used_mb }, { "gpu_celsius", rank->gpu.celsius },
    };
    put(w, "{\"host\":");
    put_text(w, host);
    for (size_t i = 0; i < DSC_COUNT(members); i++) {
        put(w, ",\"%s\":", members[i].name);
        put_number(w, members[i].value);
    }
    put(w, "}");
}

size_t dsc_page_json(const dsc_page *page, char *out, size_t capacity)
{
    writer w = { out, capacity, 0 };
    put(&w, "{%s%s\"step\":%lld,\"first_step\":%lld,\"seconds\":%.1f,\"quiet_seconds\":%.1f,\"series\":[", page->about,
        page->about[0] != 0 ? "," : "", (long long)page->step, (long long)page->first_step,
        (double)(dsc_clock_wall_ns() - page->started_ns) * 1e-9,
        (double)(dsc_clock_wall_ns() - page->updated_ns) * 1e-9);
    for (int i = 0; i < DSC_PAGE_SERIES; i++) {
        put(&w, "%s", i > 0 ? "," : "");
        put_series(&w, &page->series[i], series[i].name, page->step);
    }
    put(&w, "],\"rank\":[");
    for (int32_t r = 0; r < page->rank_count && r < DSC_MONITOR_RANKS_MAX; r++) {
        put(&w, "%s", r > 0 ? "," : "");
        put_rank(&w, &page->rank[r], page->hosts != NULL ? page->hosts + (size_t)r * DSC_MONITOR_HOST_BYTES : "");
    }
    put(&w, "],\"log\":[");
    const int64_t lines = dsc_min_i64(page->line_count, DSC_PAGE_LINES);
    for (int64_t i = page->line_count - lines; i < page->line_count; i++) {
        put(&w, "%s", i > page->line_count - lines ? "," : "");
        put_text(&w, page->line[i % DSC_PAGE_LINES]);
    }
    put(&w, "]}\n");
    return w.used < w.capacity ? w.used : 0;
}
