/* saves.c - see saves.h. SPDX-License-Identifier: Apache-2.0 */
#include "saves.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- going on from one ---- */

/* How often the run has begun again; 1 in every world after the first. -1: it never will. */
static long restart_count(const train_saves *s)
{
    const char *count = getenv("DSC_RESTART_COUNT"); /* dsc-launch --max_restarts */
    if (s->world > 1)
        return 1;
    return count != NULL ? strtol(count, NULL, 10) : s->world == 1 ? 0 : -1;
}

/* This rank's view of it. */
static int64_t look_for_saved(const train_saves *s)
{
    char latest[PATH_MAX];
    int64_t step = -1;
    const int length = snprintf(latest, sizeof latest, "%s/latest", s->info->save_dir);
    if (length > 0 && (size_t)length < sizeof latest && access(latest, F_OK) == 0) {
        FILE *file = fopen(latest, "re");
        if (file == NULL || fscanf(file, "step-%18" SCNd64, &step) != 1)
            step = -2;
        if (file != NULL)
            fclose(file);
    }
    return step;
}

/* The checkpoint that `latest` of --save names. Rank 0 looks; if hosts have own folders, all look and the newest
 * counts. step -1: nothing is there, -2: no step. */
static dsc_status find_saved(train_saves *s, int64_t *step, dsc_error *err)
{
    const int32_t ranks = s->info->node_local ? dsc_engine_size(s->engine) : 1;
    const int64_t mine = look_for_saved(s);
    *step = -1;
    for (int32_t r = 0; r < ranks; r++) {
        int64_t seen = mine;
        DSC_TRY(dsc_engine_broadcast(s->engine, &seen, (int64_t)sizeof seen, r, err));
        if (seen >= 0 ? seen > *step : *step == -1)
            *step = seen;
    }
    return DSC_OK;
}

/* Whether `path` is the folder or in it, as text. */
static bool lies_in(const char *path, const char *folder)
{
    size_t bytes = strlen(folder);
    while (bytes > 1 && folder[bytes - 1] == '/')
        bytes--;
    return strncmp(path, folder, bytes) == 0 && (path[bytes] == 0 || path[bytes] == '/');
}

/* A restart before the first save would go on from what is in the folder now: that has to be what this run goes on
 * from. */
static dsc_status check_saved(train_saves *s, int64_t saved, dsc_error *err)
{
    const dsc_run_info *info = s->info;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_stats_get(s->engine, &stats);
    if (saved == -1 || (lies_in(info->load_dir, info->save_dir) && stats.step == saved))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, info->save_dir, "its \"latest\" names a checkpoint of another run, from which "
                    "--max_restarts or --min_np would go on; use another --save folder, or --load auto to go on from "
                    "it now");
}

/* --load latest: the newest checkpoint of --save; auto: likewise, or a fresh start when there is none. After a restart
 * what the earlier start saved comes before --load. */
dsc_status train_saves_load(train_saves *s, dsc_error *err)
{
    const dsc_run_info *info = s->info;
    const char *dir = info->load_dir;
    const bool latest = strcmp(dir, "latest") == 0, automatic = strcmp(dir, "auto") == 0;
    const long restarts = restart_count(s);
    int64_t saved = -1;
    if ((automatic || latest) && info->save_dir[0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--load", "%s means the newest checkpoint of --save DIR; give --save", dir);
    dir = latest ? info->save_dir : dir;
    if (automatic || (restarts >= 0 && info->save_dir[0] != 0))
        DSC_TRY(find_saved(s, &saved, err));
    if (automatic || restarts > 0)
        dir = saved != -1 ? info->save_dir : automatic ? "" : dir;
    if (dir[0] != 0)
        DSC_TRY(dsc_engine_load(s->engine, dir, err));
    return automatic || latest || restarts != 0 ? DSC_OK : check_saved(s, saved, err);
}

/* ---- saving ---- */

/* A full or broken disk does not end a run whose last checkpoint is whole: the next save may succeed. A
 * lost or stuck peer ends it in any case. The verdict is the same on every rank, and so is this. */
static bool outlives(const train_saves *s, dsc_status failure)
{
    return !s->info->save_failure_stops &&
           (failure == DSC_ERR_IO || failure == DSC_ERR_INPUT || failure == DSC_ERR_NOMEM || failure == DSC_ERR_NOFIT);
}

static dsc_status meet(const train_saves *s, int64_t step, bool final, dsc_status status, const dsc_error *failure,
                       dsc_error *err)
{
    char text[1024];
    if (status != DSC_OK && (final || !outlives(s, status))) {
        *err = *failure;
        return status;
    }
    if (status != DSC_OK && s->progress != NULL)
        fprintf(stderr, "dsc: warning: step %lld is not saved: %s; training goes on (dsc.save_failure)\n",
                (long long)step, dsc_error_format(failure, text, sizeof text));
    return DSC_OK;
}

static void tell_saved(train_saves *s, int64_t step, int64_t since_ns, const char *more)
{
    s->saved_step = step;
    if (s->progress != NULL)
        train_progress_say(s->progress, "saved step %lld to %s/step-%lld  (%.2f s%s)", (long long)step,
                           s->info->save_dir, (long long)step, (double)(train_now_ns() - since_ns) * 1e-9, more);
}

/* A saved step with a validation loss. A failure to name it leaves the earlier best one, and is a warning as that of a
 * save. */
static dsc_status note_best(train_saves *s, int64_t step, double loss, dsc_error *err)
{
    char text[1024];
    bool named = false;
    dsc_error failure = DSC_ERROR_INIT;
    const dsc_status status = dsc_engine_save_best(s->engine, s->info->save_dir, step, loss, &named, &failure);
    if (status != DSC_OK && !outlives(s, status)) {
        *err = failure;
        return status;
    }
    if (status != DSC_OK && s->progress != NULL)
        fprintf(stderr, "dsc: warning: step %lld is not named as the best checkpoint: %s; training goes on "
                "(dsc.save_failure)\n", (long long)step, dsc_error_format(&failure, text, sizeof text));
    if (named && s->progress != NULL)
        train_progress_say(s->progress, "best checkpoint: step-%lld, validation loss %.6f", (long long)step, loss);
    return DSC_OK;
}

dsc_status train_saves_evaluated(train_saves *s, int64_t step, double loss, dsc_error *err)
{
    s->evaluated_step = step;
    s->evaluated_loss = loss;
    if (s->started_step == step)
        s->started_loss = loss;
    return s->saved_step == step ? note_best(s, step, loss, err) : DSC_OK;
}

static double loss_of(const train_saves *s, int64_t step)
{
    return s->evaluated_step == step ? s->evaluated_loss : NAN;
}

dsc_status train_saves_settle(train_saves *s, dsc_error *err)
{
    dsc_error failure = DSC_ERROR_INIT;
    const int64_t step = s->started_step;
    if (step < 0)
        return DSC_OK;
    s->started_step = -1;
    const dsc_status status = dsc_engine_save_wait(s->engine, NULL, &failure);
    if (status == DSC_OK)
        tell_saved(s, step, s->started_ns, ", while training went on");
    if (status == DSC_OK && !isnan(s->started_loss))
        DSC_TRY(note_best(s, step, s->started_loss, err));
    /* A later save may still succeed, also a last one of the same step. */
    return meet(s, step, false, status, &failure, err);
}

void train_saves_forget(train_saves *s)
{
    s->saved_step = s->evaluated_step = -1;
}

dsc_status train_saves_save(train_saves *s, int64_t step, bool final, dsc_error *err)
{
    dsc_error failure = DSC_ERROR_INIT;
    dsc_status status;
    if (s->started_step != step || final)
        DSC_TRY(train_saves_settle(s, err));
    if (s->saved_step == step || s->started_step == step)
        return DSC_OK;
    const int64_t start = train_now_ns();
    if (s->info->save_async && !final) {
        status = dsc_engine_save_start(s->engine, s->info->save_dir, &failure);
        s->started_step = status == DSC_OK ? step : -1;
        s->started_ns = start;
        s->started_loss = loss_of(s, step);
    } else {
        status = dsc_engine_save(s->engine, s->info->save_dir, &failure);
        if (status == DSC_OK)
            tell_saved(s, step, start, "");
        if (status == DSC_OK && !isnan(loss_of(s, step)))
            DSC_TRY(note_best(s, step, loss_of(s, step), err));
    }
    return meet(s, step, final, status, &failure, err);
}
