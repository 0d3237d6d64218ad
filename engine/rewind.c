/* rewind.c - a run goes back to an earlier checkpoint after a spike, and leaves out the batches since.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

typedef struct rewind_word {
    int64_t step; /* number of the checkpoint; -1: none is old enough */
    dsc_status status;
    dsc_error error;
} rewind_word;

/* Rank 0 looks. */
static dsc_status find_target(dsc_engine *engine, const char *dir, int64_t *step, dsc_error *err)
{
    rewind_word word;
    memset(&word, 0, sizeof word);
    word.error = (dsc_error)DSC_ERROR_INIT;
    const int64_t most = engine->progress.step - engine->config.own.spikes.rewind_steps;
    if (engine->place.rank == 0)
        word.status = dsc_ckpt_newest_until(&engine->io, engine->alloc, dir, most, &word.step, &word.error);
    DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, &word, (int64_t)sizeof word, 0, NULL, err));
    *step = word.step;
    if (word.status != DSC_OK && err != NULL)
        *err = word.error;
    return word.status;
}

/* Checkpoints of the steps that are made again. One rank of each folder removes them, and the others wait. */
static dsc_status leave_later(dsc_engine *engine, const char *dir, int64_t step, dsc_error *err)
{
    const bool removes = engine->config.own.node_local ? engine->place.local_rank == 0 : engine->place.rank == 0;
    if (removes)
        DSC_TRY(dsc_ckpt_leave_later(&engine->io, engine->alloc, dir, step, err));
    return dsc_comm_barrier(engine->comms.all, DSC_CHANNEL_CONTROL, NULL, err);
}

static void tell(const dsc_engine *engine, int64_t spike, int64_t to, int64_t first, int64_t batches)
{
    if (engine->place.rank != 0)
        return;
    if (to < 0)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "step %lld: no checkpoint is %lld steps older (dsc.spikes.rewind_steps), so the run goes on "
                       "without its update",
                       (long long)spike, (long long)engine->config.own.spikes.rewind_steps);
    else
        dsc_log_printf(&engine->log, DSC_LOG_WARNING,
                       "the run goes back from step %lld to step %lld, and leaves out batches %lld to %lld",
                       (long long)spike, (long long)to, (long long)first + 1, (long long)(first + batches));
}

static dsc_status rewind_to(dsc_engine *engine, const char *dir, int64_t step, dsc_error *err)
{
    char path[4096];
    dsc_skips skips = engine->input.skips;
    const int64_t spike = engine->progress.step, first = dsc_skips_batch(&skips, step);
    const int64_t batches = dsc_max_i64(engine->config.own.spikes.skip_batches,
                                        dsc_skips_batch(&skips, spike - 1) - first + 1);
    if ((size_t)snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)step) >= sizeof path)
        return DSC_FAIL(err, DSC_ERR_INPUT, dir, "the path is too long");
    DSC_TRY(dsc_engine_load(engine, path, err));
    const bool added = dsc_skips_add(&skips, step, batches);
    DSC_ASSERT(added); /* dsc.spikes.rewind_limit */
    engine->input.skips = skips;
    if (engine->input.reader != NULL)
        DSC_TRY(dsc_reader_seek(engine->input.reader, step, &skips, err));
    DSC_TRY(leave_later(engine, dir, step, err));
    tell(engine, spike, step, first, batches);
    return DSC_OK;
}

dsc_status dsc_engine_rewind(dsc_engine *engine, const char *dir, int64_t *step, dsc_error *err)
{
    int64_t to = -1;
    if (step != NULL)
        *step = -1;
    if (engine->failed || !engine->spikes.rewind_due)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "rewind without a step whose result asks for it (dsc.spikes)");
    DSC_TRY(dsc_engine_check_idle(engine, "rewind", err));
    if (engine->saves.begun)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "rewind while a save is on its way; call dsc_engine_save_wait first");
    engine->spikes.rewind_due = false;
    dsc_alloc_freeze(engine->alloc, false);
    DSC_TRY(dsc_engine_fail(engine, find_target(engine, dir, &to, err), err));
    if (to < 0)
        tell(engine, engine->progress.step, to, 0, 0);
    else
        DSC_TRY(dsc_engine_fail(engine, rewind_to(engine, dir, to, err), err));
    dsc_alloc_freeze(engine->alloc, engine->input.reader == NULL || to < 0);
    if (step != NULL)
        *step = to;
    return DSC_OK;
}
