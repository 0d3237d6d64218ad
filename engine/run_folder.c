/* run_folder.c - `"save": "auto"`: a new folder for the checkpoints of each run.
 *
 * Presets use it: two runs of one preset, of other sizes or models, never meet each other's checkpoints.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/internal.h"

static void choose_folder(char *out, size_t out_bytes)
{
    const time_t now = time(NULL);
    struct tm local;
    char when[32] = "";
    if (localtime_r(&now, &local) != NULL)
        (void)strftime(when, sizeof when, "%Y%m%d-%H%M%S", &local);
    snprintf(out, out_bytes, "checkpoints/run-%s-%ld", when, (long)getpid());
}

dsc_status dsc_engine_run_folder(dsc_engine *engine, dsc_error *err)
{
    char *save = engine->config.own.save;
    const int64_t bytes = (int64_t)sizeof engine->config.own.save;
    if (strcmp(save, "auto") != 0)
        return DSC_OK;
    if (engine->place.rank == 0)
        choose_folder(save, (size_t)bytes);
    DSC_TRY(dsc_comm_broadcast(engine->comms.all, DSC_CHANNEL_CONTROL, save, bytes, 0, NULL, err));
    save[bytes - 1] = 0;
    if (engine->place.rank == 0)
        dsc_log_printf(&engine->log, DSC_LOG_INFO, "dsc.save \"auto\": %s", save);
    return DSC_OK;
}
