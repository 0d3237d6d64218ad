/* trial.h - short real runs of `train` under dsc-launch with a changed config, and the results in their logs.
 * `dsc scale` and `dsc tune` measure by them.
 *
 * A trial is a run like any other: other processes, the user's model, data and machine. Saves, logs,
 * monitors and evaluation are removed from its config. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRIAL_H
#define DSC_TOOLS_TRIAL_H

#include "base/flags.h"
#include "base/formats/json.h"

#include "engine/config/config.h"

enum { TRIAL_STEPS_MAX = 4096, TRIAL_FLAGS_MAX = 64 };

/* A value that the command line gives. */
typedef struct trial_edit {
    const char *path; /* key path; NULL: --set, then `text` is KEY=VALUE */
    const char *text;
} trial_edit;

/* Settings of all trials of a command. Strings are borrowed. */
typedef struct trial_setup {
    const char *path;                         /* of the config */
    trial_edit edit[TRIAL_FLAGS_MAX];
    int edit_count;
    const char *launch_flag[TRIAL_FLAGS_MAX]; /* for dsc-launch: --hostfile, -H, ... ; none: this host */
    int launch_flag_count;
    int64_t warm_steps;  /* first steps of a run that do not count */
    int64_t steps;       /* that count */
    int64_t limit_s;     /* a run that takes longer is ended and has failed */
    /* By trial_open: */
    dsc_alloc *alloc;
    dsc_json *file;
    cJSON *config;       /* the file's values with the edits */
    char folder[4096];   /* folder of the trials' files */
} trial_setup;
#define TRIAL_SETUP_INIT { .warm_steps = 3, .steps = 10, .limit_s = 600 }

/* Flags that belong to every trial. Offsets count from a trial_setup. */
#define TRIAL_FLAG_ROWS 10
extern const dsc_flag trial_flags[TRIAL_FLAG_ROWS];

/* Results of one or several runs of one config. */
typedef struct trial_result {
    int exit_code;      /* exit code of the last run; 0: the other fields are set */
    char why[512];      /* else: its own words */
    int64_t runs;
    int64_t tokens;     /* tokens of a step over all ranks */
    double step_s[TRIAL_STEPS_MAX]; /* times of each counted step, over all runs */
    int64_t step_count;
    bool pictures;      /* tokens are images */
    double steps_per_epoch; /* 0: unknown */
    double waited_s;    /* sum over the steps, mean of the ranks: collectives and nothing else; < 0: unknown */
} trial_result;

/* Reads the config and makes the folder. */
DSC_MUST_USE dsc_status trial_open(trial_setup *setup, dsc_error *err);
/* Removes what the runs left; safe after an error and before trial_open. */
dsc_status trial_close(trial_setup *setup, dsc_error *err);

/* The first half of that. */
DSC_MUST_USE dsc_status trial_make_config(trial_setup *setup, dsc_error *err);

/* A config of this command as the engine reads it, for `ranks` ranks. The caller frees *out (dsc_alloc_free). */
DSC_MUST_USE dsc_status trial_resolve(const trial_setup *setup, const cJSON *config, int64_t ranks, dsc_config **out,
                                      dsc_error *err);
/* How many ranks dsc-launch starts when it is not told. */
DSC_MUST_USE dsc_status trial_usual_ranks(const trial_setup *setup, int64_t *ranks, dsc_error *err);
/* Runs `config` once on `ranks` ranks and adds its steps to *result. A failed run is not an error: see
 * result->exit_code. An error: nothing can be run at all, or the user ended it (DSC_ERR_STATE). */
DSC_MUST_USE dsc_status trial_run(const trial_setup *setup, const cJSON *config, int64_t ranks, trial_result *result,
                                  dsc_error *err);

/* micro-batch and accumulation into a config, whose train_batch_size follows. */
DSC_MUST_USE dsc_status trial_put_batch(cJSON *config, int64_t micro_batch, int64_t accumulation, dsc_error *err);

/* A batch of `batch` samples on `ranks` ranks: *micro_batch is the largest that is at most `most` and divides each
 * rank's share, *accumulation the rest. false: the shares are not equal. */
bool trial_share_batch(int64_t batch, int64_t ranks, int64_t most, int64_t *micro_batch, int64_t *accumulation);

/* q = 0.5: the median step. 0 when there is none. */
double trial_quantile_s(const trial_result *result, double q);
double trial_tokens_per_s(const trial_result *result);

/* Adds to *waited_s a time of the timeline at `path` (dsc.trace), for steps above `after`. The time is a rank's time
 * with a collective under way and no other work, averaged over the ranks. */
DSC_MUST_USE dsc_status trial_read_waits(dsc_alloc *alloc, const char *path, int64_t after, double *waited_s,
                                         dsc_error *err);

#endif
