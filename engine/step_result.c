/* step_result.c - the result of a step, for the host program, rank 0's log and the monitors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "engine/internal.h"
#include "engine/model.h"
#include "engine/report.h"
#include "engine/update.h"

void dsc_step_result_give(const dsc_step_result *full, dsc_step_result *out)
{
    const uint32_t bytes = out->struct_bytes;
    memcpy(out, full, bytes < sizeof *full ? bytes : sizeof *full);
    out->struct_bytes = bytes;
}

static void tell_pairs(const dsc_engine *engine, dsc_step_result *out)
{
    if (!dsc_model_prefers(engine->model))
        return;
    const dsc_pair_sums means = dsc_engine_step_pairs(engine);
    out->reward_chosen = means.chosen;
    out->reward_rejected = means.rejected;
    out->reward_margin = means.chosen - means.rejected;
    out->reward_accuracy = means.accuracy;
}

/* The longest wait of a rank; the other ranks waited for that one in their collectives. */
static int64_t longest_data_wait(const dsc_engine *engine)
{
    const int64_t words = dsc_step_stat_count(&engine->config);
    const double *own = engine->work.step_stat_count + engine->config.micro_steps_most;
    double longest = 0;
    for (int32_t r = 0; r < engine->place.size; r++)
        longest = fmax(longest, own[r * words + DSC_STAT_DATA_NS]);
    return (int64_t)longest;
}

/* The rank that waits least for exchanges is the one that the others wait for. */
static void find_slowest(const dsc_engine *engine, dsc_step_result *out)
{
    const int64_t words = dsc_step_stat_count(&engine->config), size = engine->place.size;
    const double *own = engine->work.step_stat_count + engine->config.micro_steps_most;
    double sum = 0, least = 0;
    for (int32_t r = 0; r < size; r++) {
        const double wait = own[r * words + DSC_STAT_WAIT_NS];
        sum += wait;
        if (r == 0 || wait < least) {
            least = wait;
            out->slowest_rank = r;
        }
    }
    if (size > 1 && out->step_ns > 0)
        out->slowest_share = fmax(0, ((sum - least) / (double)(size - 1) - least) / (double)out->step_ns);
}

void dsc_step_result_report(const dsc_engine *engine, const dsc_update *update, double loss, double loss_scale,
                          uint32_t requests, dsc_step_result *result)
{
    dsc_step_result full = DSC_STEP_RESULT_INIT;
    full.step = engine->progress.step;
    full.loss = loss;
    full.lr = update->lr;
    full.grad_norm = update->grad_norm;
    full.tokens = dsc_engine_step_tokens(engine, engine->progress.step);
    full.counted_tokens = engine->counts.all;
    full.seq_length = dsc_engine_length(engine, engine->progress.step);
    full.flops = dsc_engine_step_flops(engine, engine->progress.step);
    full.step_ns = engine->times.last_step_ns;
    full.data_wait_ns = longest_data_wait(engine);
    memcpy(full.sent_bytes, engine->times.last_exchange.sent, sizeof full.sent_bytes);
    memcpy(full.received_bytes, engine->times.last_exchange.received, sizeof full.received_bytes);
    full.exchange_wait_ns = engine->times.last_exchange.wait_ns;
    full.skipped = update->skip;
    full.spike = engine->spikes.seen;
    full.rewind = engine->spikes.rewind_due;
    full.loss_scale = loss_scale;
    full.epoch = engine->input.samples_per_epoch > 0
                     ? ((dsc_skips_batch(&engine->input.skips, engine->progress.step - 1) + 1) *
                            engine->config.train_batch_size - 1) / engine->input.samples_per_epoch
                     : 0;
    full.requests = requests;
    full.save_ended = engine->saves.ended;
    find_slowest(engine, &full);
    tell_pairs(engine, &full);
    dsc_engine_tell_experts(engine, &full);
    dsc_engine_report_step(engine, &full);
    if (result != NULL)
        dsc_step_result_give(&full, result);
}
