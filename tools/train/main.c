/* main.c - `train`: one rank of a training run, through the public API only.
 *
 * Flow: flags -> options -> open -> (load) -> steps with evaluations and saves -> summary. Errors travel up to main,
 * which prints one line and ends with the contract's exit code. SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "args.h"
#include "progress.h"
#include "sample.h"
#include "saves.h"
#include "signals.h"
#include "worlds.h"

#define DEFAULT_DATA_MAX 16

typedef struct train_run {
    train_args args;
    char exe_dir[PATH_MAX];
    char default_path[DEFAULT_DATA_MAX][PATH_MAX];
    const char *default_data[DEFAULT_DATA_MAX + 1]; /* the last one is drawn pictures */
    int32_t default_data_count;
    dsc_engine *engine;
    dsc_run_info info;
    train_progress progress;
    int rank; /* as the environment says, for messages before the engine is open */
    bool progress_open;
    bool world_ends; /* ranks leave or join: the others go on in another world */
    bool left;       /* this rank has left the job */
    int stop_signal; /* signal that ends the run after its save; 0: none */
    bool patience_ended;
    int64_t applied_count, skipped_count; /* steps of this run with and without an update */
    train_saves saves;
    train_sample sample;
    train_worlds worlds;
    int64_t world_end_ns; /* when this rank left its last world; 0: it was in none */
    int64_t start_ns, first_step_ns;
    double eval_best; /* lowest loss of an evaluation so far */
    int64_t eval_count, eval_worse_count; /* evaluations, and those in a row whose loss was not lower */
} train_run;

static void log_line(void *user, dsc_log_level level, const char *text)
{
    train_run *run = user;
    if (level == DSC_LOG_DEBUG)
        return;
    if (level == DSC_LOG_INFO && run->progress_open) {
        train_progress_say(&run->progress, "%s", text);
    } else if (level == DSC_LOG_INFO && run->rank == 0) {
        printf("%s\n", text);
        fflush(stdout);
    } else if (level != DSC_LOG_INFO) {
        fprintf(stderr, "dsc: %s: %s\n", level == DSC_LOG_WARNING ? "warning" : "note", text);
    }
}

static void find_exe_dir(train_run *run)
{
    const ssize_t length = readlink("/proc/self/exe", run->exe_dir, sizeof run->exe_dir - 1);
    run->exe_dir[length > 0 ? length : 0] = 0;
    char *slash = strrchr(run->exe_dir, '/');
    if (slash != NULL)
        *slash = 0;
    else
        snprintf(run->exe_dir, sizeof run->exe_dir, ".");
}

static void add_default(train_run *run, const char *dir, const char *file)
{
    char *path = run->default_path[run->default_data_count];
    const int length = snprintf(path, PATH_MAX, "%s/%s", dir, file);
    if (run->default_data_count < DEFAULT_DATA_MAX && length > 0 && length < PATH_MAX && access(path, R_OK) == 0)
        run->default_data[run->default_data_count++] = path;
}

/* A first run without any data trains on the text of `make demo`, or on English that every Debian has; a model of
 * pictures on drawn ones. */
static void find_default_data(train_run *run)
{
    static const char *const licenses[] = { "GPL-3",    "GPL-2",   "GPL-1",   "LGPL-2.1",   "LGPL-2",  "GFDL-1.3",
                                            "GFDL-1.2", "MPL-1.1", "MPL-2.0", "Apache-2.0", "Artistic" };
    add_default(run, run->exe_dir, "../data/bible-kjv.txt");
    const bool demo_text = run->default_data_count > 0;
    for (size_t i = 0; !demo_text && i < sizeof licenses / sizeof licenses[0]; i++)
        add_default(run, "/usr/share/common-licenses", licenses[i]);
    run->default_data[run->default_data_count++] = "shapes:train";
}

/* ---- what is said at the start ---- */

static dsc_status print_plan(train_run *run, dsc_error *err)
{
    int64_t total = 0;
    train_progress_say(&run->progress, "plan per rank (MiB):");
    for (int32_t i = 0; i < dsc_engine_plan_row_count(run->engine); i++) {
        dsc_plan_row row;
        DSC_TRY(dsc_engine_plan_row(run->engine, i, &row, err));
        total += strcmp(row.tier, "nvme") != 0 ? row.planned_bytes : 0;
        if (row.planned_bytes > 0)
            train_progress_say(&run->progress, "  %-12s %-7s %10.2f", row.tag, row.tier,
                               (double)row.planned_bytes / 1048576.0);
    }
    train_progress_say(&run->progress, "  %-12s %-7s %10.2f", "total", "", (double)total / 1048576.0);
    return DSC_OK;
}

static dsc_status print_start(train_run *run, dsc_error *err)
{
    const dsc_run_info *info = &run->info;
    const bool kept = strcmp(info->recompute, "kept") == 0, again = !kept && strcmp(info->recompute, "none") != 0;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(run->engine, &stats);
    train_progress_say(
        &run->progress, "dsc %s: %s, %.2f M parameters, %d rank%s (%s), %lld thread%s each, ZeRO stage %d%s%s%s",
        dsc_version(), info->model_name, (double)stats.parameter_count * 1e-6, (int)dsc_engine_size(run->engine),
        dsc_engine_size(run->engine) == 1 ? "" : "s", info->transport, (long long)stats.threads,
        stats.threads == 1 ? "" : "s", (int)info->zero_stage, info->overlap_comm ? ", overlapped" : "",
        kept    ? ", activations kept"
        : again ? ", recomputation "
                : "",
        again ? info->recompute : "");
    char tokens[48] = ""; /* pictures have none */
    if (info->seq_length > 0)
        snprintf(tokens, sizeof tokens, "; %lld tokens a sample", (long long)info->seq_length);
    train_progress_say(
        &run->progress, "effective batch %lld = micro-batch %lld x accumulation %lld x %d rank%s%s; %lld steps",
        (long long)info->train_batch_size, (long long)info->micro_batch_size, (long long)info->accumulation_steps,
        (int)info->data_ranks, info->data_ranks == 1 ? "" : "s", tokens, (long long)info->steps);
    const int tensor = dsc_engine_size(run->engine) / (info->stages * info->data_ranks);
    if (info->stages > 1 || tensor > 1)
        train_progress_say(&run->progress, "grid: pipeline %d x data %d x tensor %d", (int)info->stages,
                           (int)info->data_ranks, tensor);
    train_progress_say(&run->progress, "numerics: %s", info->numerics);
    return print_plan(run, err);
}

/* ---- the run ---- */

/* Whatever could end the run only after its last step is found before its first. */
static dsc_status check_run(train_run *run, int64_t step, dsc_error *err)
{
    const dsc_run_info *info = &run->info;
    if (info->steps == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.steps",
                        "how long to train is unknown; give --steps or data with an end");
    if (!info->has_data)
        return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.data", "no data is given; set it in the config or with --data");
    if (run->args.prompt != NULL && run->sample.token_count == 0) /* a later world has it already */
        DSC_TRY(train_sample_open(&run->sample, run->args.prompt, info, err));
    if (info->save_dir[0] != 0 && step < info->steps)
        DSC_TRY(dsc_engine_save_check(run->engine, info->save_dir, info->save_every, info->steps, err));
    return DSC_OK;
}

static void engine_options(train_run *run, dsc_engine_options *options)
{
    *options = (dsc_engine_options)DSC_ENGINE_OPTIONS_INIT;
    options->config_path = run->args.config;
    options->overrides = run->args.overrides;
    options->override_count = run->args.override_count;
    options->flags =
        DSC_ENGINE_ONE_THREAD | DSC_ENGINE_LATE_VALUES | (run->args.strict ? (uint32_t)DSC_ENGINE_STRICT : 0);
    if (run->worlds.now.carried)
        options->flags |= DSC_ENGINE_CARRIED;
    options->carried = &run->worlds.carried;
    options->io = train_worlds_slow_disk();
    options->log = (dsc_log){ log_line, run };
    options->default_model = "gpt2-nano";
    options->default_data = run->default_data;
    options->default_data_count = run->default_data_count;
}

static dsc_status evaluate(train_run *run, int64_t step, dsc_error *err)
{
    double loss;
    const int64_t start = train_now_ns();
    DSC_TRY(dsc_engine_evaluate(run->engine, NULL, run->info.eval_batches, &loss, err));
    if (run->progress_open)
        train_progress_say(&run->progress, "step %lld  validation loss %.6f  (%.1f s)", (long long)step, loss,
                           (double)(train_now_ns() - start) * 1e-9);
    if (run->progress_open) {
        dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
        dsc_engine_stats_get(run->engine, &stats);
        DSC_TRY(train_progress_evaluated(&run->progress, step, loss, &stats, err));
    }
    const bool better = run->eval_count++ == 0 || isnan(run->eval_best) || loss < run->eval_best;
    run->eval_worse_count = better ? 0 : run->eval_worse_count + 1;
    if (better)
        run->eval_best = loss;
    return train_saves_evaluated(&run->saves, step, loss, err);
}

/* The loss is the same on every rank, so all of them stop. */
static bool patience_ends(train_run *run, int64_t step)
{
    const int64_t patience = run->info.eval_patience;
    if (patience == 0 || run->eval_worse_count < patience)
        return false;
    if (run->progress_open)
        train_progress_say(&run->progress,
                           "step %lld: %lld evaluations in a row brought no lower loss than %.6f; the run ends "
                           "(dsc.stop.eval_patience)",
                           (long long)step, (long long)patience, run->eval_best);
    return true;
}

/* A run that has changed nothing fails, because its last checkpoint would look like a success. */
static dsc_status check_applied(const train_run *run, dsc_error *err)
{
    if (run->applied_count > 0 || run->skipped_count == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_NUMERIC, "training", "all %lld steps were skipped, so nothing was trained and nothing "
                    "is saved; the warnings above name the first gradient that is not finite. In fp16 give more steps, "
                    "a lower fp16.initial_scale_power, or bf16", (long long)run->skipped_count);
}

/* The steps since the checkpoint are made again with other samples; so are their saves. */
static dsc_status rewind_run(train_run *run, dsc_error *err)
{
    int64_t step;
    DSC_TRY(train_saves_settle(&run->saves, err));
    DSC_TRY(dsc_engine_rewind(run->engine, run->info.save_dir, &step, err));
    if (step >= 0)
        train_saves_forget(&run->saves);
    return DSC_OK;
}

static dsc_status after_step(train_run *run, const dsc_step_result *result, dsc_error *err)
{
    const dsc_run_info *info = &run->info;
    const bool last = result->step == info->steps, can_save = info->save_dir[0] != 0;
    if (run->first_step_ns == 0) {
        run->first_step_ns = train_now_ns() - run->start_ns;
        dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
        dsc_engine_stats_get(run->engine, &stats);
        run->progress.memory_bytes = stats.tracked_bytes;
    }
    if (run->progress_open)
        DSC_TRY(train_progress_step(&run->progress, result, err));
    train_worlds_stepped(&run->worlds, result->step);
    run->world_ends = (result->requests & TRAIN_REQUEST_WORLD) != 0 && !last;
    run->applied_count += !result->skipped;
    run->skipped_count += result->skipped;
    run->stop_signal = last ? 0 : train_signals_stop(result->requests);
    if ((result->requests & TRAIN_REQUEST_SAVE) != 0 && !can_save && run->progress_open)
        train_progress_say(&run->progress, "SIGUSR1: nothing is saved; start with --save DIR");
    if (result->save_ended)
        DSC_TRY(train_saves_settle(&run->saves, err));
    if (can_save && ((result->requests & TRAIN_REQUEST_SAVE) != 0 || train_signals_stop(result->requests) != 0))
        DSC_TRY(train_saves_save(&run->saves, result->step, last || run->stop_signal != 0, err));
    if (run->stop_signal != 0)
        return DSC_OK;
    if (result->rewind)
        return rewind_run(run, err);
    if (info->has_eval_data && (last || (info->eval_every > 0 && result->step % info->eval_every == 0)))
        DSC_TRY(evaluate(run, result->step, err));
    run->patience_ended = !last && patience_ends(run, result->step);
    const bool end = last || run->patience_ended;
    run->world_ends = run->world_ends && !end;
    if (end)
        DSC_TRY(check_applied(run, err));
    if (can_save && (end || (info->save_every > 0 && result->step % info->save_every == 0)))
        DSC_TRY(train_saves_save(&run->saves, result->step, end, err));
    return DSC_OK;
}

/* A call of the launcher becomes a request, so that all ranks end the world after the same step. */
static void look_for_calls(train_run *run)
{
    train_worlds_look(&run->worlds);
    if (run->worlds.called)
        dsc_engine_request(run->engine, TRAIN_REQUEST_WORLD);
    if (run->worlds.end_called)
        dsc_engine_request(run->engine, train_signals_request(SIGTERM));
}

static dsc_status train(train_run *run, dsc_error *err)
{
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(run->engine, &stats);
    if (stats.step >= run->info.steps && run->progress_open)
        train_progress_say(&run->progress, "step %lld of %lld is done already; nothing to train", (long long)stats.step,
                           (long long)run->info.steps);
    while (stats.step < run->info.steps && run->stop_signal == 0 && !run->patience_ended && !run->world_ends) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        look_for_calls(run);
        DSC_TRY(dsc_engine_train_batch(run->engine, &result, err));
        DSC_TRY(after_step(run, &result, err));
        dsc_engine_stats_get(run->engine, &stats); /* the step, which may be an earlier one */
    }
    return DSC_OK;
}

/* ---- what is said at the end ---- */

static int64_t peak_rss_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

typedef struct limit_words { char text[120]; } limit_words;

/* The limit is measured when the run has ended, by ranks that may share cores with each other and with other work. One
 * that the run was faster than is none. */
static const char *limit_text(double rate, double limit, bool gpu, limit_words *out)
{
    const double share = 100 * rate / limit, reached = limit * 1e-9;
    if (rate > limit)
        snprintf(out->text, sizeof out->text, " (products measured behind it: %.0f, no limit)", reached);
    else if (gpu)
        snprintf(out->text, sizeof out->text, ": MFU %.1f %% of %.0f GFLOP/s", share, reached);
    else
        snprintf(out->text, sizeof out->text, ": %.0f %% of the %.0f GFLOP/s that matrix products reach here", share,
                 reached);
    return out->text;
}

static dsc_status print_end(train_run *run, dsc_error *err)
{
    double peak_flops = 0;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(run->engine, &stats); /* before measuring takes memory of its own */
    DSC_TRY(dsc_engine_peak_flops(run->engine, &peak_flops, err));
    DSC_TRY(dsc_engine_barrier(run->engine, err));
    if (!run->progress_open)
        return DSC_OK;
    train_progress *p = &run->progress;
    const double seconds = (double)(train_now_ns() - p->start_ns) * 1e-9;
    if (run->args.curve)
        train_progress_curve(p, 10);
    train_progress_say(p, "memory per rank: tracked peak %.1f MiB, planned %.1f MiB (%.2f %%); process peak %.1f MiB",
                       (double)stats.tracked_peak_bytes / 1048576.0, (double)stats.planned_bytes / 1048576.0,
                       100.0 * (double)stats.tracked_peak_bytes / (double)stats.planned_bytes,
                       (double)peak_rss_bytes() / 1048576.0);
    if (p->tokens > 0 && p->step_ns_smooth > 0) {
        const double rate = p->flops_per_step / (p->step_ns_smooth * 1e-9),
                     limit = peak_flops * dsc_engine_size(run->engine);
        limit_words words;
        train_progress_say(p, "%.0f %s/s over the run, %.1f GFLOP/s at the end%s", (double)p->tokens / seconds,
                           p->pictures ? "images" : "tokens",
                           rate * 1e-9, limit_text(rate, limit, strcmp(run->info.device, "cuda") == 0, &words));
        train_progress_say(p, "start to end of first step: %.2f s", (double)run->first_step_ns * 1e-9);
    }
    return DSC_OK;
}

/* The error of a last save that failed comes after this line. */
static void say_stopped(train_run *run)
{
    const char *signal_name = train_signals_name(run->stop_signal);
    if (run->info.save_dir[0] != 0 && run->saves.saved_step >= 0)
        train_progress_say(&run->progress, "%s: ended at step %lld, which is saved; --load %s goes on from there",
                           signal_name, (long long)run->saves.saved_step, run->info.save_dir);
    else
        train_progress_say(&run->progress, "%s: ended at step %lld; nothing is saved%s", signal_name,
                           (long long)run->worlds.step, run->info.save_dir[0] == 0 ? "; start with --save DIR" : "");
}

/* ---- one world after the other, or only one ---- */

/* Values by which all ranks decide alike, from rank 0 to ranks that joined. */
static dsc_status spread_decisions(train_run *run, dsc_error *err)
{
    struct {
        double eval_best, evaluated_loss;
        int64_t eval_count, eval_worse_count, saved_step, evaluated_step, applied_count, skipped_count;
    } all = { run->eval_best,        run->saves.evaluated_loss, run->eval_count,    run->eval_worse_count,
              run->saves.saved_step, run->saves.evaluated_step, run->applied_count, run->skipped_count };
    DSC_TRY(dsc_engine_broadcast(run->engine, &all, (int64_t)sizeof all, 0, err));
    run->eval_best = all.eval_best;
    run->eval_count = all.eval_count;
    run->eval_worse_count = all.eval_worse_count;
    run->applied_count = all.applied_count;
    run->skipped_count = all.skipped_count;
    run->saves.saved_step = all.saved_step;
    run->saves.evaluated_step = all.evaluated_step;
    run->saves.evaluated_loss = all.evaluated_loss;
    return DSC_OK;
}

/* Rank 0 shows progress. In a later world that may be another rank than before. */
static dsc_status open_progress(train_run *run, const dsc_engine_stats *stats, dsc_error *err)
{
    const bool shows = dsc_engine_rank(run->engine) == 0, opens = shows && !run->progress_open;
    if (run->progress_open && !shows) {
        train_progress_close(&run->progress);
        run->progress_open = false;
    }
    if (opens)
        DSC_TRY(train_progress_open(&run->progress, &run->info, stats, stats->step, err));
    run->progress_open = shows;
    run->saves.progress = shows ? &run->progress : NULL;
    run->progress.ranks = dsc_engine_size(run->engine);
    run->progress.loads = run->info.log_expert_load ? run->engine : NULL;
    if (opens && !run->worlds.now.carried)
        DSC_TRY(print_start(run, err));
    if (shows && stats->step > 0 && !run->worlds.now.carried)
        train_progress_say(&run->progress, "resumed at step %lld", (long long)stats->step);
    if (!shows || run->worlds.now.generation <= 1)
        return DSC_OK;
    const double seconds = run->world_end_ns != 0 ? (double)(train_now_ns() - run->world_end_ns) * 1e-9 : -1;
    return train_progress_world(&run->progress, run->worlds.now.generation, stats->step, seconds, err);
}

static dsc_status open_run(train_run *run, dsc_error *err)
{
    dsc_engine_options options;
    const train_saves before = run->saves;
    const char *rank = getenv("RANK");
    run->rank = rank != NULL ? atoi(rank) : 0;
    engine_options(run, &options);
    DSC_TRY(dsc_engine_open(&run->engine, &options, err));
    run->info.struct_bytes = (uint32_t)sizeof run->info;
    dsc_engine_run_info(run->engine, &run->info);
    run->saves = (train_saves) { .engine = run->engine,
                                 .info = &run->info,
                                 .saved_step = -1,
                                 .started_step = -1,
                                 .evaluated_step = -1,
                                 .world = run->worlds.now.generation };
    if (run->worlds.now.carried) {
        run->saves.saved_step = before.saved_step;
        run->saves.evaluated_step = before.evaluated_step;
        run->saves.evaluated_loss = before.evaluated_loss;
        DSC_TRY(spread_decisions(run, err));
    } else {
        /* Counted anew, as by ranks whose process is new in this world. */
        run->eval_count = run->eval_worse_count = run->applied_count = run->skipped_count = 0;
        DSC_TRY(train_saves_load(&run->saves, err));
    }
    /* Without a load, first values are made here, so that errors of a model's files come before the run. */
    DSC_TRY(dsc_engine_barrier(run->engine, err));
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(run->engine, &stats);
    DSC_TRY(check_run(run, stats.step, err));
    run->worlds.step = stats.step;
    return open_progress(run, &stats, err);
}

/* Too few ranks are left. */
static dsc_status save_and_end(train_run *run, dsc_error *err)
{
    return run->info.save_dir[0] != 0 ? train_saves_save(&run->saves, run->worlds.step, true, err) : DSC_OK;
}

/* At a step boundary: into another world, or, where the launcher ends the job, to the end. */
static dsc_status part(train_run *run, dsc_error *err)
{
    bool end;
    const bool leaves = train_signals_leaves();
    DSC_TRY(train_saves_settle(&run->saves, err));
    DSC_TRY(train_worlds_part(&run->worlds, &run->engine, leaves, &end, err));
    run->world_ends = !end;
    run->left = !end && leaves;
    if (!end)
        return DSC_OK;
    run->stop_signal = SIGTERM;
    return save_and_end(run, err);
}

/* The run in one world, up to its end or that of the world. */
static dsc_status run_world(train_run *run, dsc_error *err)
{
    const bool change = train_worlds_change(&run->worlds);
    run->world_ends = run->patience_ended = false;
    DSC_TRY(open_run(run, err));
    if (run->worlds.now.last)
        return save_and_end(run, err);
    train_signals_watch(run->engine, change                       ? TRAIN_SIGNALS_LEAVE
                                     : run->info.save_dir[0] != 0 ? TRAIN_SIGNALS_SAVE
                                                                  : TRAIN_SIGNALS_END);
    const dsc_status trained = train(run, err);
    if (change)
        train_signals_pause();
    else
        train_signals_unwatch();
    DSC_TRY(trained);
    if (run->world_ends && run->stop_signal == 0)
        DSC_TRY(part(run, err));
    if (run->world_ends || run->stop_signal != 0)
        return DSC_OK;
    if (run->args.prompt != NULL)
        DSC_TRY(train_sample_print(&run->sample, run->engine, run->progress_open ? &run->progress : NULL, err));
    return print_end(run, err);
}

/* True: a failure was the loss of a rank, or ranks leave and join, and the run goes on in another world. */
static bool goes_on(train_run *run, dsc_status status, const dsc_error *failure)
{
    char text[1024];
    if (status == DSC_OK)
        return run->world_ends && !run->left && run->stop_signal == 0;
    if (!train_worlds_is_loss(&run->worlds, status))
        return false;
    train_signals_pause();
    if (run->rank == 0)
        fprintf(stderr, "dsc: note: world %u ends: %s\n", run->worlds.now.generation,
                dsc_error_format(failure, text, sizeof text));
    run->saves.started_step = -1; /* a save that was on its way is lost */
    train_worlds_lose(&run->worlds, &run->engine, failure);
    return true;
}

static dsc_status run_all(train_run *run, dsc_error *err)
{
    dsc_status status;
    DSC_TRY(train_worlds_open(&run->worlds, err));
    if (train_worlds_change(&run->worlds)) {
        DSC_TRY(train_args_set_number(&run->args, "dsc.elastic.min_ranks", run->worlds.least, "--min_np", err));
        DSC_TRY(train_args_set_number(&run->args, "dsc.elastic.max_ranks", run->worlds.most, "--max_np", err));
    }
    do {
        if (train_worlds_change(&run->worlds))
            DSC_TRY(train_worlds_next(&run->worlds, err));
        if (run->worlds.end_called)
            return DSC_OK;
        status = run_world(run, err);
        run->world_end_ns = train_now_ns();
    } while (goes_on(run, status, err));
    if (run->left)
        train_worlds_left(&run->worlds);
    else if (status == DSC_OK)
        train_worlds_done(&run->worlds, run->saves.saved_step == run->worlds.step);
    return status;
}

/* A descriptor 0, 1 or 2 that the caller closed would become a log or a checkpoint, with our lines in it. */
static void open_standard_files(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", O_RDWR);
}

int main(int argc, char **argv)
{
    open_standard_files();
    static train_run run; /* too large for a stack */
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    const char *rank = getenv("RANK");
    run.start_ns = train_now_ns();
    run.rank = rank != NULL ? atoi(rank) : 0;
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of that write, not the end of a rank */
    find_exe_dir(&run);
    find_default_data(&run);
    dsc_status status = train_args_parse(argc, argv, run.exe_dir, &run.args, &err);
    if (status == DSC_OK && (run.args.help || run.args.version)) {
        if (run.args.help)
            train_args_help(stdout);
        else
            printf("train (dsc) %s\n", dsc_version());
        return 0;
    }
    if (status == DSC_OK)
        status = run_all(&run, &err);
    if (run.progress_open && run.stop_signal != 0)
        say_stopped(&run);
    if (run.progress_open)
        train_progress_close(&run.progress);
    train_sample_close(&run.sample);
    dsc_engine_close(&run.engine);
    train_worlds_close(&run.worlds);
    if (status == DSC_OK)
        return run.stop_signal != 0 ? 128 + run.stop_signal : 0;
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(&err, text, sizeof text));
    return dsc_status_exit_code(status);
}
