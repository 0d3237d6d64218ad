/* report.c - rank 0's log of a run besides results: the resolved config, time by phase, numbers for the monitors.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/data/pictures.h"
#include "engine/internal.h"
#include "engine/machine.h"
#include "engine/model.h"
#include "engine/report.h"

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

void dsc_engine_note(const dsc_engine *engine, const char *what, const char *taken)
{
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "%s: taking %s", what, taken);
}

/* A changed default is a warning of the run, not of a plan. */
static dsc_log_level note_level(const dsc_engine *engine, int i)
{
    const bool warns = (engine->config.note_warns >> i & 1) != 0;
    return warns && !engine->plan_only ? DSC_LOG_WARNING : DSC_LOG_INFO;
}

static void tell_config(const dsc_engine *engine, const dsc_log *log)
{
    for (int i = 0; i < engine->config.note_count; i++)
        dsc_log_printf(log, note_level(engine, i), "%s", engine->config.notes[i]);
    for (int i = 0; i < engine->config.warning_count; i++)
        dsc_log_printf(log, DSC_LOG_WARNING, "%s", engine->config.warnings[i]);
    if (engine->model != NULL && engine->models.opened != NULL && engine->model->warnings != NULL)
        dsc_log_printf(log, DSC_LOG_WARNING, "%s", engine->model->warnings);
}

void dsc_engine_report_config(const dsc_engine *engine)
{
    if (engine->place.rank != 0)
        return;
    warn_of_crowd(engine);
    tell_config(engine, &engine->log);
}

/* ---- profile ---- */

dsc_status dsc_engine_open_profile(dsc_engine *engine, dsc_error *err)
{
    const dsc_profile_options options = { .alloc = engine->alloc, .io = &engine->io, .log = &engine->log,
                                          .config = &engine->config, .place = engine->place };
    return dsc_profile_open(&options, &engine->output.profile, err);
}

static int64_t parameters_of(const dsc_module *module)
{
    int64_t sum = 0;
    for (int32_t p = 0; p < module->param_count; p++) {
        int64_t elements = module->params[p].shared_module < 0 ? 1 : 0;
        for (int32_t d = 0; d < module->params[p].dim_count; d++)
            elements *= module->params[p].dim[d];
        sum += elements;
    }
    return sum;
}

dsc_status dsc_engine_start_profile(dsc_engine *engine, dsc_error *err)
{
    const int32_t count = engine->model->module_count;
    dsc_profile_module *modules = NULL;
    if (engine->output.profile == NULL)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, count, sizeof *modules, &modules, err));
    /* Operation counts belong to the reported step. */
    const int64_t profiled_step = engine->config.flops_profiler.profile_step;
    const int32_t cut = dsc_engine_cut_of(engine, dsc_engine_length(engine, profiled_step));
    const dsc_module_plan *plans = cut < 0 ? engine->plan.module : &engine->plan.shorter[cut * count];
    for (int32_t m = 0; m < count; m++) {
        const dsc_module_plan *plan = &plans[m];
        /* A loss module's forward is its backward, too. */
        const bool at_once = (engine->model->modules[m].flags & DSC_MODULE_LOSS) != 0;
        modules[m] = (dsc_profile_module) { .name = engine->model->modules[m].name,
                                            .parameters = parameters_of(&engine->model->modules[m]),
                                            .forward_flops = plan->forward_flops + (at_once ? plan->backward_flops : 0),
                                            .backward_flops = at_once ? 0 : plan->backward_flops,
                                            .recompute_flops = dsc_plan_recompute_flops(
                                                &engine->config, &engine->model->modules[m], plan) };
    }
    const dsc_status status = dsc_profile_start(engine->output.profile, engine->comms.all, modules, count, err);
    dsc_alloc_free(engine->alloc, modules);
    return status;
}

/* With all of the compute stream's work done, in a step whose modules are timed. */
static int64_t span_time(const dsc_engine *engine)
{
    if (!engine->host_visible && dsc_profile_wants_modules(engine->output.profile, engine->progress.step + 1) &&
        dsc_stream_sync(engine->compute, NULL) != DSC_OK)
        return 0; /* the step finds it again, and says what it is */
    return dsc_clock_ns();
}

int64_t dsc_engine_span_start(const dsc_engine *engine, dsc_span_kind kind, int32_t module)
{
    if (engine->output.profile == NULL)
        return 0;
    dsc_profile_begin(engine->output.profile, kind, module);
    return span_time(engine);
}

void dsc_engine_span_end(const dsc_engine *engine, dsc_span_kind kind, int32_t module, int64_t start_ns)
{
    if (engine->output.profile != NULL)
        dsc_profile_span(engine->output.profile, kind, module, start_ns, span_time(engine));
}

/* ---- monitors ---- */

static void show_line(void *user, dsc_log_level level, const char *text)
{
    const dsc_engine *engine = user;
    dsc_monitors_log(engine->output.monitors, level, text);
}

static void log_and_show(void *user, dsc_log_level level, const char *text)
{
    const dsc_engine *engine = user;
    if (engine->output.program_log.fn != NULL)
        engine->output.program_log.fn(engine->output.program_log.user, level, text);
    show_line(user, level, text);
}

/* Every rank's host, to all: what a page of ranks shows. */
static dsc_status gather_hosts(dsc_engine *engine, dsc_error *err)
{
    char own[DSC_MONITOR_HOST_BYTES] = "";
    (void)gethostname(own, sizeof own - 1);
    DSC_TRY(dsc_alloc_zeroed(engine->alloc, DSC_TAG_CONTROL, engine->place.size, (int64_t)sizeof own,
                             &engine->output.hosts, err));
    return dsc_comm_all_gather(engine->comms.all, DSC_CHANNEL_CONTROL, engine->output.hosts, own, (int64_t)sizeof own,
                               DSC_U8, NULL, err);
}

dsc_status dsc_engine_open_monitors(dsc_engine *engine, dsc_error *err)
{
    const dsc_log only_shown = { show_line, engine };
    dsc_device_props props;
    if (dsc_monitors_wanted(&engine->config)) {
        dsc_device_props_get(engine->device, &props);
        DSC_TRY(dsc_gpu_sensor_open(engine->alloc, props.pci, &engine->output.sensor, err));
    }
    if (engine->config.own.prometheus_port != 0)
        DSC_TRY(gather_hosts(engine, err));
    if (engine->place.rank != 0)
        return DSC_OK;
    DSC_TRY(dsc_monitors_open(engine->alloc, &engine->io, &engine->log, &engine->config, &engine->output.monitors,
                              err));
    if (engine->output.monitors == NULL)
        return DSC_OK;
    engine->output.program_log = engine->log;
    engine->log = (dsc_log){ log_and_show, engine };
    tell_config(engine, &only_shown); /* was logged before the page existed */
    return DSC_OK;
}

void dsc_engine_describe(const dsc_engine *engine)
{
    dsc_run_info info = { .struct_bytes = sizeof info };
    dsc_engine_run_info(engine, &info);
    const dsc_monitor_about about = { .model = info.model_name,
                                      .transport = info.transport,
                                      .device = info.device,
                                      .numerics = info.numerics,
                                      .zero_stage = info.zero_stage,
                                      .ranks = engine->place.size,
                                      .batch = info.train_batch_size,
                                      .steps = info.steps,
                                      .hosts = engine->output.hosts };
    dsc_monitors_describe(engine->output.monitors, &about);
}

static int64_t samples_so_far(const dsc_engine *engine)
{
    return engine->progress.step * engine->config.train_batch_size;
}

/* Each rank's report of its part in the step. */
static void tell_ranks(const dsc_engine *engine)
{
    const int64_t words = dsc_step_stat_count(&engine->config), ranks = engine->quota.now.ranks;
    dsc_monitor_rank rank[DSC_MONITOR_RANKS_MAX];
    const int32_t count = (int32_t)dsc_min_i64(engine->place.size, DSC_MONITOR_RANKS_MAX);
    for (int32_t r = 0; r < count; r++) {
        const double *word = engine->work.step_stat_count + r * words;
        const double *own = word + engine->config.micro_steps_most;
        const int64_t quota = dsc_quota_of(&engine->quota.now, (int32_t)(r % ranks));
        double loss = 0;
        for (int64_t m = 0; m < quota; m++)
            loss += word[m];
        const dsc_gpu_reading gpu = { own[DSC_STAT_GPU_WATTS], own[DSC_STAT_GPU_BUSY], own[DSC_STAT_GPU_USED_MB],
                                      own[DSC_STAT_GPU_CELSIUS] };
        loss = dsc_engine_counted_mean(engine, loss / (double)quota, (int64_t)own[DSC_STAT_COUNTED],
                                       dsc_engine_step_targets(engine, engine->progress.step) /
                                           engine->quota.now.total * quota);
        rank[r] = (dsc_monitor_rank) { loss, own[DSC_STAT_WORK_NS] * 1e-6, own[DSC_STAT_DATA_NS] * 1e-6,
                                       own[DSC_STAT_MEMORY_BYTES] / 1e6, gpu };
    }
    dsc_monitors_ranks(engine->output.monitors, rank, count);
}

/* Over all ranks' GPUs: sum of power, mean use, maximum of memory and temperature. */
static void tell_gpus(const dsc_engine *engine)
{
    const int64_t words = dsc_step_stat_count(&engine->config), size = engine->place.size;
    dsc_gpu_reading all = { .used_mb = NAN, .celsius = NAN };
    for (int64_t r = 0; r < size; r++) {
        const double *own = engine->work.step_stat_count + r * words + engine->config.micro_steps_most;
        all.watts += own[DSC_STAT_GPU_WATTS];
        all.busy_percent += own[DSC_STAT_GPU_BUSY] / (double)size;
        all.used_mb = fmax(all.used_mb, own[DSC_STAT_GPU_USED_MB]);
        all.celsius = fmax(all.celsius, own[DSC_STAT_GPU_CELSIUS]);
    }
    const dsc_scalar scalars[] = { { "Train/Samples/gpu_power_watts", all.watts },
                                   { "Train/Samples/gpu_busy_percent", all.busy_percent },
                                   { "Train/Samples/gpu_memory_mb", all.used_mb },
                                   { "Train/Samples/gpu_celsius", all.celsius } };
    for (size_t i = 0; i < DSC_COUNT(scalars) && engine->output.sensor != NULL; i++)
        if (isfinite(scalars[i].value)) /* not every card tells everything */
            dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &scalars[i], 1);
}

static void tell_progress(const dsc_engine *engine, const dsc_step_result *result)
{
    const int64_t every = engine->config.steps_per_print;
    char line[160];
    if (every == 0 || (engine->progress.step % every != 0 && engine->progress.step != 1))
        return;
    snprintf(line, sizeof line, "step %lld: loss %.6f, lr %.3e, norm %.4f, %.0f ms", (long long)engine->progress.step,
             result->loss, result->lr, result->grad_norm, (double)result->step_ns * 1e-6);
    dsc_monitors_log(engine->output.monitors, DSC_LOG_INFO, line);
}

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
    const dsc_engine_times *t = &engine->times;
    const dsc_scalar times[] = { { "Train/Samples/elapsed_time_ms_forward", (double)t->last_forward_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_backward", (double)t->last_backward_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_step", (double)t->update_ns * 1e-6 },
                                 { "Train/Samples/elapsed_time_ms_data", (double)t->last_data_wait_ns * 1e-6 } };
    const dsc_scalar scalars[] = { { "Train/Samples/train_loss", result->loss },
                                   { "Train/Samples/lr", result->lr },
                                   { "Train/Samples/loss_scale", result->loss_scale },
                                   { "Train/Samples/grad_norm", result->grad_norm },
                                   { "Train/Samples/tokens_per_second",
                                     (double)result->tokens / ((double)result->step_ns * 1e-9) } };
    const dsc_scalar images = { "Train/Samples/images_per_second", scalars[DSC_COUNT(scalars) - 1].value };
    const dsc_scalar pairs[] = { { "Train/Samples/reward_chosen", result->reward_chosen },
                                 { "Train/Samples/reward_rejected", result->reward_rejected },
                                 { "Train/Samples/reward_margin", result->reward_margin },
                                 { "Train/Samples/reward_accuracy", result->reward_accuracy } };
    const dsc_scalar routers[] = { { "Train/Samples/expert_load_ratio", result->expert_load_ratio },
                                   { "Train/Samples/experts_idle", (double)result->experts_idle },
                                   { "Train/Samples/aux_loss", result->aux_loss },
                                   { "Train/Samples/z_loss", result->z_loss } };
    const dsc_scalar counted = { "Train/Samples/counted_tokens", (double)result->counted_tokens };
    dsc_profile_step(engine->output.profile, engine->progress.step);
    if (engine->place.rank != 0)
        return;
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), scalars, DSC_COUNT(scalars));
    if (engine->model != NULL && dsc_model_sees_pictures(engine->model))
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &images, 1);
    if (engine->counts.masked)
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &counted, 1);
    if (dsc_model_prefers(engine->model))
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), pairs, DSC_COUNT(pairs));
    if (dsc_model_has_routers(engine->model)) /* the losses only where the model has them */
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), routers,
                           engine->model->experts.balance > 0 || engine->model->experts.z > 0 ? 4 : 2);
    if (engine->output.monitors != NULL) {
        tell_ranks(engine);
        tell_gpus(engine);
        tell_progress(engine, result);
    }
    const int64_t every = engine->config.steps_per_print;
    if (!engine->config.wall_clock_breakdown || every == 0 || engine->progress.step % every != 0)
        return;
    tell_times(engine, times, DSC_COUNT(times));
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), times, DSC_COUNT(times));
}

/* The share of samples whose class is among the five most likely ones. */
static void tell_five(const dsc_engine *engine, const dsc_evaluation *result)
{
    const dsc_scalar scalar = { "Validation/Samples/accuracy_top5",
                                (double)result->right_of_five / (double)result->items };
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &scalar, 1);
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "evaluation: top-5 accuracy %.4f, %lld of %lld %s", scalar.value,
                   (long long)result->right_of_five, (long long)result->items,
                   engine->model->labels.tokens > 0 ? "words" : "samples");
}

/* The share of samples that are classified rightly; of a regression its loss says all. */
static void tell_accuracy(const dsc_engine *engine, const dsc_evaluation *result)
{
    const double accuracy = (double)result->right / (double)result->items;
    const dsc_scalar scalar = { "Validation/Samples/accuracy", accuracy };
    if (engine->model->labels.kind == DSC_LABELS_NUMBERS)
        return;
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &scalar, 1);
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "evaluation: accuracy %.4f, %lld of %lld %s", accuracy,
                   (long long)result->right, (long long)result->items,
                   engine->model->labels.tokens > 0 ? "words" : "samples");
    if (result->ranked)
        tell_five(engine, result);
}

/* Recall and correlations of vectors of texts. */
static void tell_texts(const dsc_engine *engine, const dsc_text_evaluation *texts)
{
    const double recall = (double)texts->first / (double)dsc_max_i64(1, texts->rows);
    const double accuracy = (double)texts->right / (double)dsc_max_i64(1, texts->triplets);
    const dsc_scalar first = { "Validation/Samples/recall_at_1", recall };
    const dsc_scalar right = { "Validation/Samples/triplet_accuracy", accuracy };
    const dsc_scalar scored[] = { { "Validation/Samples/spearman", texts->spearman },
                                  { "Validation/Samples/pearson", texts->pearson } };
    if (texts->rows > 0) {
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &first, 1);
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "evaluation: recall@1 %.4f, %lld of %lld positives come first in their micro-batch", recall,
                       (long long)texts->first, (long long)texts->rows);
    }
    if (texts->triplets > 0) {
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &right, 1);
        dsc_log_printf(&engine->log, DSC_LOG_INFO,
                       "evaluation: accuracy %.4f, %lld of %lld positives come before their row's negatives", accuracy,
                       (long long)texts->right, (long long)texts->triplets);
    }
    if (texts->pairs < 2)
        return;
    if (isfinite(texts->spearman) && isfinite(texts->pearson))
        dsc_monitors_write(engine->output.monitors, samples_so_far(engine), scored, DSC_COUNT(scored));
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "evaluation: Spearman %.4f, Pearson %.4f of %lld scored pairs",
                   texts->spearman, texts->pearson, (long long)texts->pairs);
}

void dsc_engine_report_evaluation(const dsc_engine *engine, const dsc_evaluation *result)
{
    const dsc_scalar scalar = { "Validation/Samples/loss", result->loss };
    const dsc_pair_sums *pairs = &result->pairs;
    if (engine->place.rank != 0)
        return;
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), &scalar, 1);
    if (dsc_label_kind_pairs(engine->model->labels.kind))
        tell_texts(engine, &result->texts);
    else if (engine->model->labels.kind != DSC_LABELS_NONE)
        tell_accuracy(engine, result);
    if (!dsc_model_prefers(engine->model))
        return;
    const dsc_scalar rewards[] = { { "Validation/Samples/reward_chosen", pairs->chosen },
                                   { "Validation/Samples/reward_rejected", pairs->rejected },
                                   { "Validation/Samples/reward_margin", pairs->chosen - pairs->rejected },
                                   { "Validation/Samples/reward_accuracy", pairs->accuracy } };
    dsc_monitors_write(engine->output.monitors, samples_so_far(engine), rewards, DSC_COUNT(rewards));
    dsc_log_printf(&engine->log, DSC_LOG_INFO, "evaluation: accuracy %.3f, margin %.4f, rewards %.4f and %.4f",
                   pairs->accuracy, pairs->chosen - pairs->rejected, pairs->chosen, pairs->rejected);
}
