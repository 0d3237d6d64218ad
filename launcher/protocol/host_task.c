/* host_task.c - see host_task.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/protocol/host_task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Device that a slot means: the slot's entry in the user's list, or its own number. */
static void put_device(const dsc_launcher_plan *plan, int32_t slot, char *out, size_t out_bytes)
{
    const char *at = plan->visible;
    if (at == NULL) {
        snprintf(out, out_bytes, "%d", slot);
        return;
    }
    for (; slot > 0; slot--)
        at += strcspn(at, ",") + 1;
    snprintf(out, out_bytes, "%.*s", (int)strcspn(at, ","), at);
}

/* Slots of a host as CUDA_VISIBLE_DEVICES: the same for all its ranks, which choose by LOCAL_RANK. */
static const char *devices_of(const dsc_launcher_plan *plan, const dsc_host *host, char out[DSC_DEVICES_BYTES])
{
    size_t used = 0;
    out[0] = 0;
    for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++) {
        char device[64];
        if (!dsc_host_has_slot(host, slot))
            continue;
        put_device(plan, slot, device, sizeof device);
        if (used + strlen(device) + 2 > DSC_DEVICES_BYTES) /* only a list of names of devices can be so long */
            return NULL;
        used += (size_t)sprintf(out + used, "%s%s", used > 0 ? "," : "", device);
    }
    return out;
}

int32_t dsc_plan_first_rank(const dsc_launcher_plan *plan, int32_t host)
{
    int32_t first_rank = 0;
    for (int32_t h = 0; h < host; h++)
        first_rank += plan->pool.host[h].slot_count;
    return first_rank;
}

void dsc_host_task_of_plan(const dsc_launcher_plan *plan, int32_t host, char text[DSC_DEVICES_BYTES],
                           dsc_host_task *out)
{
    DSC_ASSERT(host >= 0 && host < plan->pool.count);
    *out = (dsc_host_task){ .world_size = plan->world_size,
                            .host = host,
                            .host_count = (int32_t)plan->pool.count,
                            .first_rank = dsc_plan_first_rank(plan, host),
                            .rank_count = plan->pool.host[host].slot_count,
                            .master_port = plan->master_port,
                            .thread_count = plan->thread_count,
                            .bind_cores = plan->bind,
                            .cores = plan->bind_cores,
                            .master_addr = plan->master_addr,
                            .devices = plan->hide_gpus ? getenv("CUDA_VISIBLE_DEVICES")
                                                       : devices_of(plan, &plan->pool.host[host], text),
                            .core_list = "",
                            .folder = "" };
}

void dsc_host_task_close(dsc_alloc *alloc, dsc_host_task *task)
{
    dsc_alloc_free(alloc, task->owned);
    *task = (dsc_host_task){ .owned = NULL };
}

dsc_status dsc_job_token_new(char out[DSC_JOB_TOKEN_CHARS + 1], dsc_error *err)
{
    unsigned char random[DSC_JOB_TOKEN_CHARS / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return DSC_FAIL(err, DSC_ERR_IO, "dsc-launch",
                        "no random bytes for the job's token: %s; allow the "
                        "system call getrandom, which a container's seccomp profile may forbid",
                        strerror(errno));
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(out + 2 * i, 3, "%02x", random[i]);
    return DSC_OK;
}

bool dsc_job_token_is_one(const char *text)
{
    return strlen(text) == DSC_JOB_TOKEN_CHARS && text[strspn(text, "0123456789abcdef")] == 0;
}

dsc_status dsc_job_token_given(char out[DSC_JOB_TOKEN_CHARS + 1], dsc_error *err)
{
    const char *text = getenv("DSC_JOB_TOKEN");
    out[0] = 0;
    if (text == NULL || text[0] == 0)
        return DSC_OK;
    if (!dsc_job_token_is_one(text))
        return DSC_FAIL(err, DSC_ERR_INPUT, "DSC_JOB_TOKEN", "expected %d hexadecimal digits, the same on each host, "
                        "for example of openssl rand -hex 16", DSC_JOB_TOKEN_CHARS);
    memcpy(out, text, DSC_JOB_TOKEN_CHARS + 1);
    return DSC_OK;
}
