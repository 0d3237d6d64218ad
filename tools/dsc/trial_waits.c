/* trial_waits.c - how long ranks waited for each other, out of their timeline (dsc.trace).
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tools/dsc/tool.h"
#include "tools/dsc/trial.h"

enum { TRACE_BYTES_MAX = 1 << 30, LINE_BYTES_MAX = 4096, RANKS_MAX = 1024 };

/* An end of a span: of a collective, or of work. */
typedef struct edge {
    double at_us;
    int32_t rank;
    int16_t collectives, works; /* under way from here on: 1 more, 1 fewer or 0 */
} edge;

typedef struct edges {
    dsc_alloc *alloc;
    edge *item;
    int64_t count, room;
    int64_t after;   /* steps up to this one do not count */
    int64_t ranks;   /* the highest seen, plus one */
} edges;

static dsc_status add(edges *all, edge one, dsc_error *err)
{
    if (all->count == all->room) {
        edge *more = NULL;
        const int64_t room = all->room > 0 ? 2 * all->room : 4096;
        DSC_TRY(dsc_alloc_zeroed(all->alloc, DSC_TAG_CONTROL, room, sizeof *more, &more, err));
        if (all->count > 0)
            memcpy(more, all->item, sizeof *more * (size_t)all->count);
        dsc_alloc_free(all->alloc, all->item);
        all->item = more;
        all->room = room;
    }
    all->item[all->count++] = one;
    return DSC_OK;
}

static double number_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

static dsc_status add_span(edges *all, const cJSON *event, dsc_error *err)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(event, "cat");
    const double from = number_of(event, "ts"), length = number_of(event, "dur"), rank = number_of(event, "pid");
    const double step = number_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "step");
    if (!cJSON_IsString(kind) || length < 0 || rank < 0 || rank >= RANKS_MAX || step <= (double)all->after)
        return DSC_OK;
    const int16_t collective = strcmp(kind->valuestring, "comm") == 0;
    all->ranks = dsc_max_i64(all->ranks, (int64_t)rank + 1);
    DSC_TRY(add(all, (edge){ from, (int32_t)rank, collective, (int16_t)!collective }, err));
    return add(all, (edge){ from + length, (int32_t)rank, (int16_t)-collective, (int16_t)-!collective }, err);
}

static dsc_status add_line(void *user, const char *where, const char *text, int64_t bytes, dsc_error *err)
{
    static const dsc_json_limits limits = { LINE_BYTES_MAX, 4, 100 };
    edges *all = user;
    dsc_json *json = NULL;
    if (text[0] != '{')
        return DSC_OK; /* the brackets around the events */
    if (text[bytes - 1] == ',')
        bytes--;
    DSC_TRY(dsc_json_open(all->alloc, where, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const dsc_status status = add_span(all, dsc_json_root(json), err);
    dsc_json_close(&json);
    return status;
}

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

/* Sum over the ranks. */
static double waited_us(const edges *all)
{
    double sum = 0;
    int32_t collectives = 0, works = 0;
    for (int64_t i = 0; i < all->count; i++) {
        const edge *e = &all->item[i];
        if (i > 0 && e->rank == all->item[i - 1].rank && collectives > 0 && works == 0)
            sum += e->at_us - all->item[i - 1].at_us;
        collectives += e->collectives;
        works += e->works;
    }
    return sum;
}

dsc_status trial_read_waits(dsc_alloc *alloc, const char *path, int64_t after, double *waited_s, dsc_error *err)
{
    edges all = { .alloc = alloc, .after = after };
    const dsc_status status = dsc_tool_lines(alloc, path, TRACE_BYTES_MAX, add_line, &all, err);
    if (status == DSC_OK && all.ranks > 0) {
        qsort(all.item, (size_t)all.count, sizeof *all.item, compare_edges);
        *waited_s += waited_us(&all) * 1e-6 / (double)all.ranks;
    }
    dsc_alloc_free(alloc, all.item);
    return status;
}
