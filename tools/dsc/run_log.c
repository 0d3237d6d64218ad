/* run_log.c - see run_log.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/run_log.h"

#include <math.h>
#include <string.h>

#include "tools/dsc/tool.h"

enum { LOG_BYTES_MAX = 1 << 30, LINE_BYTES_MAX = 1 << 16, LINE_MEMBERS_MAX = 200 };

const run_log_name run_log_series[RUN_LOG_SERIES] = {
    [RUN_LOG_LOSS] = { "loss", "loss" },
    [RUN_LOG_LR] = { "lr", "learning rate" },
    [RUN_LOG_GRAD_NORM] = { "grad_norm", "gradient norm" },
    [RUN_LOG_TOKENS_PER_S] = { "tokens_per_s", "tokens per second" },
    [RUN_LOG_STEP_MS] = { "step_ms", "ms per step" },
    [RUN_LOG_DATA_WAIT_MS] = { "data_wait_ms", "ms of a step that wait for data" },
    [RUN_LOG_LOSS_SCALE] = { "loss_scale", "loss scale" },
    [RUN_LOG_TOKENS] = { "tokens", "tokens" },
    [RUN_LOG_EPOCH] = { "epoch", "epochs" },
    [RUN_LOG_IMAGES_PER_S] = { "images_per_s", "images per second" },
};

typedef struct reading {
    dsc_alloc *alloc;
    run_log *log;
} reading;

static dsc_status make_room(const reading *r, dsc_error *err)
{
    run_log *log = r->log;
    if (log->count < log->room)
        return DSC_OK;
    const int64_t room = log->room > 0 ? 2 * log->room : 1024;
    for (int i = 0; i <= RUN_LOG_SERIES; i++) {
        double *more = NULL;
        DSC_TRY(dsc_alloc_zeroed(r->alloc, DSC_TAG_CONTROL, room, sizeof *more, &more, err));
        if (log->count > 0)
            memcpy(more, log->value[i], sizeof *more * (size_t)log->count);
        dsc_alloc_free(r->alloc, log->value[i]);
        log->value[i] = more;
    }
    log->room = room;
    return DSC_OK;
}

static dsc_status add_line(void *user, const char *where, const char *text, int64_t bytes, dsc_error *err)
{
    static const dsc_json_limits limits = { LINE_BYTES_MAX, 4, LINE_MEMBERS_MAX };
    const reading *r = user;
    run_log *log = r->log;
    dsc_json *json = NULL;
    DSC_TRY(dsc_json_open(r->alloc, where, text, bytes, DSC_JSON_STRICT, &limits, &json, err));
    const cJSON *root = dsc_json_root(json), *step = cJSON_GetObjectItemCaseSensitive(root, "step");
    dsc_status status = DSC_OK;
    if (cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(root, "eval_step")) ||
        cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(root, "world"))) {
        dsc_json_close(&json);
        return DSC_OK;
    }
    if (!cJSON_IsNumber(step))
        status = DSC_FAIL(err, DSC_ERR_INPUT, where, "no \"step\" here; expected a log of train --log");
    while (status == DSC_OK && log->count > 0 && log->value[RUN_LOG_STEP][log->count - 1] >= step->valuedouble)
        log->count--;
    if (status == DSC_OK)
        status = make_room(r, err);
    for (int i = 0; status == DSC_OK && i < RUN_LOG_SERIES; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, run_log_series[i].key);
        log->value[i][log->count] = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    }
    if (status == DSC_OK)
        log->value[RUN_LOG_STEP][log->count++] = step->valuedouble;
    dsc_json_close(&json);
    return status;
}

dsc_status run_log_read(dsc_alloc *alloc, const char *path, run_log *out, dsc_error *err)
{
    reading r = { alloc, out };
    DSC_TRY(dsc_tool_lines(alloc, path, LOG_BYTES_MAX, add_line, &r, err));
    return out->count > 0 ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, path, "no step in it yet");
}

void run_log_free(dsc_alloc *alloc, run_log *log)
{
    for (int i = 0; i <= RUN_LOG_SERIES; i++)
        dsc_alloc_free(alloc, log->value[i]);
    *log = (run_log){ 0 };
}
