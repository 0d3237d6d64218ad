/* monitor.h - a run's numbers, which rank 0 writes for other tools.
 *
 * Outputs: TensorBoard event files, CSV files, an MLflow server, offline runs of Weights & Biases and Comet, and pages
 * for Prometheus and for browsers. Tags and the horizontal axis (samples so far) are DeepSpeed's, so that curves of
 * both can be compared. A folder that cannot be written is an error before the first step. A later failure (a full
 * disk) gets one warning and disables the monitor, because a monitor must not end a run.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_MONITOR_MONITOR_H
#define DSC_ENGINE_MONITOR_MONITOR_H

#include <dsc/log.h>

#include "base/io.h"
#include "engine/config/config.h"
#include "engine/monitor/gpu_sensor.h"

typedef struct dsc_scalar {
    const char *tag; /* "Train/Samples/lr": a constant of the program, at most DSC_MONITOR_TAG_BYTES long */
    double value;    /* may be NaN or infinite */
} dsc_scalar;
enum { DSC_MONITOR_TAG_BYTES = 64, DSC_MONITOR_SCALARS_MAX = 16 }; /* of one write */

/* Whether the config wants any: the same on all ranks. */
bool dsc_monitors_wanted(const dsc_config *config);

/* Facts that are constant in a run. Texts are borrowed until return, `hosts` until the monitors are closed. */
enum { DSC_MONITOR_HOST_BYTES = 64, DSC_MONITOR_RANKS_MAX = 64 /* that are shown */ };
typedef struct dsc_monitor_about {
    const char *model, *transport, *device, *numerics;
    int32_t zero_stage, ranks;
    int64_t batch, steps; /* samples of a step; of the run, 0: unknown */
    const char *hosts;    /* [ranks][DSC_MONITOR_HOST_BYTES] */
} dsc_monitor_about;

/* One rank's part in a step. */
typedef struct dsc_monitor_rank {
    double loss, work_ms, data_ms, memory_mb; /* forward and backward; waiting for data; most that was tracked */
    dsc_gpu_reading gpu;
} dsc_monitor_rank;

/* One kind of monitor. */
typedef struct dsc_monitor dsc_monitor;
typedef struct dsc_monitor_ops {
    const char *name; /* its section of the config */
    dsc_status (*write)(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count, dsc_error *err);
    /* The next three may be NULL. */
    void (*describe)(dsc_monitor *monitor, const dsc_monitor_about *about);
    void (*ranks)(dsc_monitor *monitor, const dsc_monitor_rank *ranks, int32_t count);
    void (*say)(dsc_monitor *monitor, dsc_log_level level, const char *text); /* a line of the log */
    void (*close)(dsc_monitor *monitor);
} dsc_monitor_ops;
struct dsc_monitor {
    const dsc_monitor_ops *ops;
    dsc_alloc *alloc;
    const dsc_io *io;
    char folder[4096];
    bool failed;
    bool run_failed; /* the run ends because something went wrong: for close */
};

/* monitor->folder becomes parent/name, which is made where it is missing, and written to as a trial. `parent` of NULL
 * or "" is the folder of the process, `name` may be "". monitor->io and ops are set. */
DSC_MUST_USE dsc_status dsc_monitor_make_folder(dsc_monitor *monitor, const char *parent, const char *name,
                                                dsc_error *err);

/* *out may be there after a failure, too: close it. The first two take a folder that exists; nothing is written before
 * the first numbers come. The third asks a server for a run (with MLFLOW_TRACKING_TOKEN of the environment),
 * the fourth listens on the loopback address only. */
DSC_MUST_USE dsc_status dsc_monitor_tensorboard(dsc_alloc *alloc, dsc_monitor **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_monitor_csv(dsc_alloc *alloc, dsc_monitor **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_monitor_mlflow(dsc_alloc *alloc, const char *uri, const char *experiment,
                                           const char *run_name, dsc_monitor **out, dsc_error *err);
/* Makes its folder, wandb in $WANDB_DIR or here. `config` is borrowed until close. */
DSC_MUST_USE dsc_status dsc_monitor_wandb(dsc_alloc *alloc, const dsc_io *io, const dsc_wandb_config *config,
                                          dsc_monitor **out, dsc_error *err);
/* In $COMET_OFFLINE_DIRECTORY or here; likewise. */
DSC_MUST_USE dsc_status dsc_monitor_comet(dsc_alloc *alloc, const dsc_io *io, const dsc_comet_config *config,
                                          dsc_monitor **out, dsc_error *err);
DSC_MUST_USE dsc_status dsc_monitor_http(dsc_alloc *alloc, int64_t port, dsc_monitor **out, dsc_error *err);

typedef struct dsc_monitors dsc_monitors;

/* alloc, io and log are borrowed until close. *out is NULL when the config wants none. Makes the folders; one that
 * cannot be written is DSC_ERR_INPUT or DSC_ERR_IO, err->where names it. After a failure *out is to be closed, too. */
DSC_MUST_USE dsc_status dsc_monitors_open(dsc_alloc *alloc, const dsc_io *io, const dsc_log *log,
                                          const dsc_config *config, dsc_monitors **out, dsc_error *err);
/* To every monitor that has not failed. `monitors` may be NULL. */
void dsc_monitors_write(dsc_monitors *monitors, int64_t samples, const dsc_scalar *scalars, int count);
void dsc_monitors_describe(dsc_monitors *monitors, const dsc_monitor_about *about);
void dsc_monitors_ranks(dsc_monitors *monitors, const dsc_monitor_rank *ranks, int32_t count);
void dsc_monitors_log(dsc_monitors *monitors, dsc_log_level level, const char *text);
void dsc_monitors_close(dsc_monitors **monitors, bool run_failed);

#endif
