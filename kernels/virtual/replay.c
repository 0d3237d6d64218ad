/* replay.c - see replay.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/virtual/replay.h"

#include <math.h>

#include "base/rng.h"

typedef struct replay {
    const dsc_replay_options *o;
    int32_t clocks;           /* without noise, ranks that are equally fast have one clock */
    dsc_virtual_clock *clock; /* [clocks] */
    double *stream_s;         /* [clocks][streams] */
    double *event_s;          /* [clocks][events] */
    uint64_t *kernels;        /* [clocks] replayed so far: the index of the next random number */
    double waited_s;          /* mean of the ranks, summed over the steps */
} replay;

/* Slow ranks come first. */
static bool is_slow(const replay *r, int32_t clock)
{
    return clock < (r->clocks == r->o->ranks ? r->o->slow_ranks : dsc_min_i64(r->o->slow_ranks, 1));
}

/* Ranks that have this clock. */
static int32_t ranks_of(const replay *r, int32_t clock)
{
    if (r->clocks == r->o->ranks)
        return 1;
    if (r->clocks == 1)
        return r->o->ranks;
    return is_slow(r, clock) ? r->o->slow_ranks : r->o->ranks - r->o->slow_ranks;
}

static double *stream_of(const replay *r, int32_t clock, const dsc_virtual_item *item)
{
    return item->stream >= 0 ? &r->stream_s[(int64_t)clock * r->o->streams + item->stream] : NULL;
}

static double *event_of(const replay *r, int32_t clock, const dsc_virtual_item *item)
{
    return item->event >= 0 ? &r->event_s[(int64_t)clock * r->o->events + item->event] : NULL;
}

/* How many times as long as planned the next kernel takes. */
static double slowness(replay *r, int32_t clock)
{
    const double base = is_slow(r, clock) ? r->o->slow_factor : 1;
    if (r->o->noise <= 0)
        return base;
    const double uniform = (dsc_rng_u32(r->o->seed, (uint64_t)clock, r->kernels[clock]++) + 0.5) * 0x1p-32;
    return base * (1 - r->o->noise * log(uniform));
}

static void replay_collective(replay *r, const dsc_virtual_item *item)
{
    double start = 0, arrivals = 0;
    for (int32_t c = 0; c < r->clocks; c++) {
        const double arrival = fmax(*stream_of(r, c, item), r->clock[c].host_s);
        start = fmax(start, arrival);
        arrivals += arrival * ranks_of(r, c);
    }
    r->waited_s += start - arrivals / r->o->ranks;
    for (int32_t c = 0; c < r->clocks; c++) {
        *stream_of(r, c, item) = start;
        dsc_virtual_move(&r->clock[c], stream_of(r, c, item), NULL, item);
    }
}

/* Items up to the next collective, by one clock. */
static void replay_alone(replay *r, int32_t clock, const dsc_virtual_item *items, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        dsc_virtual_item mine = items[i];
        if (mine.kind == DSC_VIRTUAL_KERNEL || (mine.kind == DSC_VIRTUAL_HOST_WORK && r->o->rates->cores > 0))
            mine.seconds *= slowness(r, clock);
        dsc_virtual_move(&r->clock[clock], stream_of(r, clock, &mine), event_of(r, clock, &mine), &mine);
    }
}

static double slowest_host_s(const replay *r)
{
    double most = 0;
    for (int32_t c = 0; c < r->clocks; c++)
        most = fmax(most, r->clock[c].host_s);
    return most;
}

/* The time of the step: from the slowest rank's end of the one before to that of this one. */
static double replay_step(replay *r)
{
    const dsc_virtual_trace *trace = r->o->trace;
    const double before = slowest_host_s(r);
    for (int64_t from = 0, to = 0; from < trace->count; from = to + 1) {
        for (to = from; to < trace->count && trace->item[to].kind != DSC_VIRTUAL_COLLECTIVE;)
            to++;
        for (int32_t c = 0; c < r->clocks; c++)
            replay_alone(r, c, &trace->item[from], to - from);
        if (to < trace->count)
            replay_collective(r, &trace->item[to]);
    }
    return slowest_host_s(r) - before;
}

/* Mean of the ranks since the first step. */
static double exposed_s(const replay *r)
{
    double sum = 0;
    for (int32_t c = 0; c < r->clocks; c++)
        sum += r->clock[c].exposed_s * ranks_of(r, c);
    return sum / r->o->ranks;
}

static dsc_status check(const dsc_replay_options *o, dsc_error *err)
{
    DSC_ASSERT(o->ranks > 0 && o->steps > 0 && o->slow_ranks <= o->ranks && o->slow_factor >= 1 && o->noise >= 0);
    for (int64_t i = 0; i < o->trace->count; i++)
        if (o->trace->item[i].kind == DSC_VIRTUAL_COLLECTIVE && o->trace->item[i].ranks != o->ranks)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "",
                            "an exchange of %d of %d ranks is not replayed; leave out keys that make groups of ranks",
                            o->trace->item[i].ranks, o->ranks);
    return DSC_OK;
}

static dsc_status open_clocks(replay *r, dsc_error *err)
{
    const dsc_replay_options *o = r->o;
    const bool mixed = o->slow_ranks > 0 && o->slow_ranks < o->ranks;
    r->clocks = o->noise > 0 ? o->ranks : mixed ? 2 : 1;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, r->clocks, sizeof *r->clock, &r->clock, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, r->clocks, sizeof *r->kernels, &r->kernels, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, (int64_t)r->clocks * dsc_max_i64(1, o->streams),
                             sizeof *r->stream_s, &r->stream_s, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, (int64_t)r->clocks * dsc_max_i64(1, o->events),
                             sizeof *r->event_s, &r->event_s, err));
    for (int32_t c = 0; c < r->clocks; c++)
        r->clock[c].rates = o->rates;
    return DSC_OK;
}

dsc_status dsc_virtual_replay(const dsc_replay_options *options, dsc_replay_result *out, dsc_error *err)
{
    replay r = { .o = options };
    *out = (dsc_replay_result) { 0 };
    DSC_TRY(check(options, err));
    const dsc_status status = open_clocks(&r, err);
    if (status == DSC_OK) {
        (void)replay_step(&r);
        const double before = exposed_s(&r);
        r.waited_s = 0;
        for (int32_t step = 0; step < options->steps; step++) {
            const double seconds = replay_step(&r);
            out->step_s += seconds / options->steps;
            out->most_s = fmax(out->most_s, seconds);
        }
        out->waited_s = r.waited_s / options->steps;
        out->exposed_s = (exposed_s(&r) - before) / options->steps;
    }
    dsc_alloc_free(options->alloc, r.clock);
    dsc_alloc_free(options->alloc, r.kernels);
    dsc_alloc_free(options->alloc, r.stream_s);
    dsc_alloc_free(options->alloc, r.event_s);
    return status;
}
