/* spikes.c - see spikes.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/spikes.h"

#include <math.h>
#include <stdio.h>

#include "engine/internal.h"
#include "engine/update.h"

/* Interval of the step that runs; 0: never. */
static bool is_due(const dsc_engine *engine, int64_t every)
{
    return every > 0 && (engine->progress.step + 1) % every == 0;
}

dsc_status dsc_spikes_begin_step(dsc_engine *engine, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    uint32_t watched = 0;
    if (own->spikes.enabled || is_due(engine, own->check_gradients))
        watched |= DSC_FINGERPRINTS_PARTS;
    if (is_due(engine, own->check_replicas) && !engine->repeat.is_second)
        watched |= DSC_FINGERPRINTS_PARAMS;
    return dsc_zero_watch(engine->zero, watched, err);
}

/* Steps of fp16 overflow while the loss scale is found, which dsc_loss_scaler handles. */
static bool overflows(const dsc_engine *engine, double loss, double norm)
{
    return dsc_engine_dtype(engine) == DSC_F16 && (!isfinite(loss) || !isfinite(norm));
}

static bool is_spike(const dsc_engine *engine, double loss, double norm, dsc_spike *out)
{
    const dsc_spikes_section *config = &engine->config.own.spikes;
    *out = (dsc_spike) { .of_norm = isfinite(loss), .value = isfinite(loss) ? norm : loss };
    if (!config->enabled || engine->counts.all == 0 || overflows(engine, loss, norm))
        return false;
    return !isfinite(loss) || !isfinite(norm) || dsc_spike_seen(config, &engine->spikes.watch, loss, norm, out);
}

static const char *action_of(const dsc_engine *engine)
{
    switch (engine->config.own.spikes.policy) {
    case DSC_SPIKES_WARN:
        return "the update is made (dsc.spikes.policy warn)";
    case DSC_SPIKES_SKIP:
        return "no update (dsc.spikes.policy skip)";
    case DSC_SPIKES_REWIND:
        break;
    }
    return "no update, and the run goes back (dsc.spikes.policy rewind)";
}

static void describe(const dsc_engine *engine, const dsc_spike *spike, char *out, size_t out_bytes)
{
    const char *what = spike->of_norm ? "gradient norm" : "loss";
    if (!isfinite(spike->value))
        snprintf(out, out_bytes, "%s is not finite", what);
    else
        snprintf(out, out_bytes, "%s %.6g is %.3g times the mean %.6g of the last %lld steps (z-score %.3g)", what,
                 spike->value, spike->value / spike->mean, spike->mean, (long long)engine->config.own.spikes.window,
                 spike->z);
}

static void report(const dsc_engine *engine, const dsc_spike *spike)
{
    char text[160], samples[560] = "";
    if (engine->place.rank != 0)
        return;
    describe(engine, spike, text, sizeof text);
    if (engine->repeat.is_over)
        dsc_repeat_describe_samples(engine, samples, sizeof samples);
    dsc_log_printf(&engine->log, DSC_LOG_WARNING, "step %lld is a spike: %s; %s%s; %s",
                   (long long)(engine->progress.step + 1), text,
                   engine->repeat.is_over
                       ? "computed twice with equal bits, so it is the data; samples with the largest losses: "
                       : "not computed again, as the host program gives its own passes",
                   samples, action_of(engine));
}

/* With policy rewind: no checkpoint may be old enough, or the run has gone back too often. */
static dsc_status check_rewinds(const dsc_engine *engine, dsc_error *err)
{
    const dsc_spikes_section *config = &engine->config.own.spikes;
    if (config->policy != DSC_SPIKES_REWIND || engine->input.skips.count < config->rewind_limit)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_NUMERIC, "dsc.spikes.rewind_limit",
                    "step %lld is a spike, and the run has gone back %d times already; look at the samples that the "
                    "warnings name, or set a lower rate or stronger clipping",
                    (long long)(engine->progress.step + 1), (int)engine->input.skips.count);
}

/* The first pass of a step. */
static dsc_status begin_again(dsc_engine *engine, double loss, double norm, uint64_t *requests, bool spike, bool *again,
                              dsc_error *err)
{
    const bool wanted = spike || is_due(engine, engine->config.own.check_gradients);
    if (!wanted || !dsc_repeat_is_possible(engine))
        return DSC_OK;
    *again = true;
    return dsc_repeat_start(engine, loss, norm, (uint32_t)*requests, err);
}

dsc_status dsc_spikes_judge(dsc_engine *engine, double loss, dsc_update *update, uint64_t *requests, bool *again,
                            dsc_error *err)
{
    const dsc_spikes_section *config = &engine->config.own.spikes;
    dsc_spike spike;
    *again = false;
    engine->spikes.seen = engine->spikes.skips = engine->spikes.rewind_due = engine->repeat.is_over = false;
    const bool seen = is_spike(engine, loss, update->grad_norm, &spike);
    if (engine->repeat.is_second) {
        *requests |= engine->repeat.requests;
        DSC_TRY(dsc_repeat_compare(engine, loss, update->grad_norm, err));
    } else {
        DSC_TRY(begin_again(engine, loss, update->grad_norm, requests, seen, again, err));
    }
    if (*again)
        return DSC_OK;
    if (config->enabled && isfinite(loss) && isfinite(update->grad_norm) &&
        (!seen || config->policy == DSC_SPIKES_WARN))
        dsc_spike_note(config, loss, update->grad_norm, &engine->spikes.watch);
    if (!seen)
        return DSC_OK;
    report(engine, &spike);
    engine->spikes.seen = true;
    if (config->policy == DSC_SPIKES_WARN)
        return DSC_OK;
    DSC_TRY(check_rewinds(engine, err));
    engine->spikes.skips = !update->skip; /* else the step has another reason for it */
    engine->spikes.rewind_due = config->policy == DSC_SPIKES_REWIND;
    update->skip = true;
    return DSC_OK;
}
