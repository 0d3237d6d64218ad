/* monitor.c - see monitor.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/monitor.h"

#include <string.h>

enum { TENSORBOARD, CSV, WANDB, COMET, MLFLOW, HTTP, KINDS };

struct dsc_monitors {
    dsc_alloc *alloc;
    const dsc_log *log;
    dsc_monitor *each[KINDS]; /* NULL: not wanted */
};

static dsc_status open_folder(dsc_monitors *monitors, int kind, const dsc_io *io, const dsc_monitor_config *config,
                              dsc_error *err)
{
    static dsc_status (*const create[])(dsc_alloc *, dsc_monitor **, dsc_error *) = { dsc_monitor_tensorboard,
                                                                                      dsc_monitor_csv };
    if (!config->enabled)
        return DSC_OK;
    DSC_TRY(create[kind](monitors->alloc, &monitors->each[kind], err));
    dsc_monitor *monitor = monitors->each[kind];
    monitor->alloc = monitors->alloc;
    monitor->io = io;
    return dsc_monitor_make_folder(monitor, config->output_path, config->job_name, err);
}

bool dsc_monitors_wanted(const dsc_config *config)
{
    return config->tensorboard.enabled || config->csv_monitor.enabled || config->wandb.enabled ||
           config->comet.enabled || config->own.mlflow_uri[0] != 0 || config->own.prometheus_port != 0;
}

dsc_status dsc_monitors_open(dsc_alloc *alloc, const dsc_io *io, const dsc_log *log, const dsc_config *config,
                             dsc_monitors **out, dsc_error *err)
{
    *out = NULL;
    const dsc_ext_config *own = &config->own;
    if (!dsc_monitors_wanted(config))
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof **out, out, err));
    (*out)->alloc = alloc;
    (*out)->log = log;
    DSC_TRY(open_folder(*out, TENSORBOARD, io, &config->tensorboard, err));
    DSC_TRY(open_folder(*out, CSV, io, &config->csv_monitor, err));
    if (config->wandb.enabled)
        DSC_TRY(dsc_monitor_wandb(alloc, io, &config->wandb, &(*out)->each[WANDB], err));
    if (config->comet.enabled)
        DSC_TRY(dsc_monitor_comet(alloc, io, &config->comet, &(*out)->each[COMET], err));
    if (own->mlflow_uri[0] != 0)
        DSC_TRY(dsc_monitor_mlflow(alloc, own->mlflow_uri, own->mlflow_experiment, own->mlflow_run_name,
                                   &(*out)->each[MLFLOW], err));
    if (own->prometheus_port == 0)
        return DSC_OK;
    return dsc_monitor_http(alloc, own->prometheus_port, &(*out)->each[HTTP], err);
}

void dsc_monitors_write(dsc_monitors *monitors, int64_t samples, const dsc_scalar *scalars, int count)
{
    for (int i = 0; monitors != NULL && i < KINDS; i++) {
        dsc_monitor *monitor = monitors->each[i];
        dsc_error err = DSC_ERROR_INIT;
        if (monitor == NULL || monitor->failed || monitor->ops->write(monitor, samples, scalars, count, &err) == DSC_OK)
            continue;
        monitor->failed = true;
        dsc_log_printf(monitors->log, DSC_LOG_WARNING, "%s: %s: %s; the run goes on without it", monitor->ops->name,
                       err.where, err.message);
    }
}

void dsc_monitors_describe(dsc_monitors *monitors, const dsc_monitor_about *about)
{
    for (int i = 0; monitors != NULL && i < KINDS; i++)
        if (monitors->each[i] != NULL && monitors->each[i]->ops->describe != NULL)
            monitors->each[i]->ops->describe(monitors->each[i], about);
}

void dsc_monitors_ranks(dsc_monitors *monitors, const dsc_monitor_rank *ranks, int32_t count)
{
    for (int i = 0; monitors != NULL && i < KINDS; i++)
        if (monitors->each[i] != NULL && monitors->each[i]->ops->ranks != NULL)
            monitors->each[i]->ops->ranks(monitors->each[i], ranks, count);
}

void dsc_monitors_log(dsc_monitors *monitors, dsc_log_level level, const char *text)
{
    for (int i = 0; monitors != NULL && i < KINDS; i++)
        if (monitors->each[i] != NULL && monitors->each[i]->ops->say != NULL)
            monitors->each[i]->ops->say(monitors->each[i], level, text);
}

void dsc_monitors_close(dsc_monitors **monitors, bool run_failed)
{
    for (int i = 0; *monitors != NULL && i < KINDS; i++)
        if ((*monitors)->each[i] != NULL) {
            (*monitors)->each[i]->run_failed = run_failed;
            (*monitors)->each[i]->ops->close((*monitors)->each[i]);
        }
    if (*monitors != NULL)
        dsc_alloc_free((*monitors)->alloc, *monitors);
    *monitors = NULL;
}
