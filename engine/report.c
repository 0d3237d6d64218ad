/* report.c - what rank 0 tells of a run besides its results: the config as it was understood, where a step's time went,
 * numbers for the monitors. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

/* The threads of a team wait actively for each other: with two of them on one core a step takes several times as long.
 * Ranks of one thread each only share the cores. */
static void warn_of_crowd(const dsc_engine *engine)
{
    const int32_t ranks = engine->place.local_size;
    const int32_t cores = dsc_machine_cores();
    if (engine->threads > 1 && dsc_machine_share(engine->threads, ranks) < 1 && !engine->plan_only)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "%d threads of %d rank%s for %d core%s: steps take several times "
                       "longer; set OMP_NUM_THREADS (or dsc.threads) to %d", (int)engine->threads, (int)ranks,
                       ranks == 1 ? "" : "s", (int)cores, cores == 1 ? "" : "s",
                       (int)dsc_max_i64(1, cores / ranks));
}

void dsc_engine_report_config(const dsc_engine *engine)
{
    if (engine->place.rank != 0)
        return;
    warn_of_crowd(engine);
    for (int i = 0; i < engine->config.note_count; i++)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "%s", engine->config.notes[i]);
    for (int i = 0; i < engine->config.warning_count; i++)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "%s", engine->config.warnings[i]);
    if (engine->model != NULL && engine->own_model != NULL && engine->model->warnings != NULL)
        dsc_log_printf(&engine->log, DSC_LOG_WARNING, "%s", engine->model->warnings);
}

/* ---- monitors ---- */

dsc_status dsc_engine_open_monitors(dsc_engine *engine, dsc_error *err)
{
    if (engine->place.rank != 0)
        return DSC_OK;
    return dsc_monitors_open(engine->alloc, &engine->io, &engine->log, &engine->config, &engine->monitors, err);
}

static int64_t samples_so_far(const dsc_engine *engine) { return engine->step * engine->config.train_batch_size; }

/* "time (ms) | forward: 8.21 | ...", the line that DeepSpeed's users read. */
static void tell_times(const dsc_engine *engine, const dsc_scalar *times, int count)
{
    static const char *const names[] = { "forward", "backward", "step", "wait for data" };
    char line[256] = "time (ms)";
    for (int i = 0; i < count; i++) {
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, " | %s: %.2f", names[i], times[i].value);
    }
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "%s", line);
}

void dsc_engine_report_step(const dsc_engine *engine, const dsc_step_result *result)
{
    const dsc_scalar times[] = { { "Train/Samples/elapsed_time_ms_forward", (double)engine->last_forward_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_backward", (double)engine->last_backward_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_step", (double)engine->update_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_data", (double)engine->last_data_wait_ns * 1e-6 } };
    const dsc_scalar scalars[] = { { "Train/Samples/train_loss", result->loss },
                                   { "Train/Samples/lr", result->lr },
                                   { "Train/Samples/loss_scale", result->loss_scale },
                                   { "Train/Samples/grad_norm", result->grad_norm },
                                   { "Train/Samples/tokens_per_second",
                                     (double)result->tokens / ((double)result->step_ns * 1e-9) } };
    if (engine->place.rank != 0)
        return;
    dsc_monitors_write(engine->monitors, samples_so_far(engine), scalars, DSC_COUNT(scalars));
    const int64_t every = engine->config.steps_per_print;
    if (!engine->config.wall_clock_breakdown || every == 0 || engine->step % every != 0)
        return;
    tell_times(engine, times, DSC_COUNT(times));
    dsc_monitors_write(engine->monitors, samples_so_far(engine), times, DSC_COUNT(times));
}

void dsc_engine_report_evaluation(const dsc_engine *engine, double loss)
{
    const dsc_scalar scalar = { "Validation/Samples/loss", loss };
    if (engine->place.rank == 0)
        dsc_monitors_write(engine->monitors, samples_so_far(engine), &scalar, 1);
}
