/* rank_env.c - DeepSpeed's names for a rank's place, torchrun's LOCAL_WORLD_SIZE, and three of our own.
 *
 *   DSC_JOB_TOKEN     the same for all ranks of this start, new for each: two jobs on a host never meet
 *   DSC_LAUNCHER_PID  the process whose death ends the job
 *   DSC_LAUNCH_TTY    columns of the terminal that rank 0's stdout, a pipe, ends in: a live bar may be drawn
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/rank_env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(dsc_rank_vars *vars, const char *name, const char *fmt, ...) DSC_PRINTF(3, 4);
static void put(dsc_rank_vars *vars, const char *name, const char *fmt, ...)
{
    va_list args;
    const size_t room = sizeof vars->text - vars->text_bytes;
    va_start(args, fmt);
    const int bytes = vsnprintf(vars->text + vars->text_bytes, room, fmt, args);
    va_end(args);
    DSC_ASSERT(bytes >= 0 && (size_t)bytes < room);
    DSC_ASSERT((size_t)vars->count < DSC_COUNT(vars->var));
    vars->var[vars->count++] = (dsc_rank_var){ name, vars->text_bytes };
    vars->text_bytes += (size_t)bytes + 1;
}

/* Slots of a host as CUDA_VISIBLE_DEVICES: the same for all its ranks, which choose by LOCAL_RANK. */
static void put_devices(dsc_rank_vars *vars, const dsc_host *host)
{
    char text[6 * DSC_HOST_SLOTS_MAX];
    size_t used = 0;
    for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
        if (dsc_host_has_slot(host, slot))
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used > 0 ? "," : "", slot);
    put(vars, "CUDA_VISIBLE_DEVICES", "%s", text);
}

void dsc_rank_vars_common(const dsc_launcher_plan *plan, dsc_rank_vars *out)
{
    const dsc_host *first = &plan->pool.host[0];
    const char *threads = getenv("OMP_NUM_THREADS");
    bool equal_sizes = true;
    out->count = 0;
    out->text_bytes = 0;
    for (int64_t i = 1; i < plan->pool.count; i++)
        equal_sizes = equal_sizes && plan->pool.host[i].slot_count == first->slot_count;
    put(out, "WORLD_SIZE", "%d", plan->world_size);
    if (equal_sizes) {
        put(out, "LOCAL_SIZE", "%d", first->slot_count);
        put(out, "LOCAL_WORLD_SIZE", "%d", first->slot_count);
    }
    put(out, "CROSS_SIZE", "%lld", (long long)plan->pool.count);
    put(out, "MASTER_ADDR", "%s", plan->master_addr);
    put(out, "MASTER_PORT", "%d", plan->master_port);
    if (plan->pool.count == 1 && !plan->hide_gpus)
        put_devices(out, first);
    if (threads == NULL || threads[0] == 0) {
        if (plan->thread_count > 0)
            put(out, "OMP_NUM_THREADS", "%d", plan->thread_count);
    } else if (strlen(threads) < 256) { /* a longer one is inherited, not shown */
        put(out, "OMP_NUM_THREADS", "%s", threads);
    }
}

void dsc_rank_vars_fill(const dsc_launcher_plan *plan, const dsc_place *place, const dsc_rank_secrets *secrets,
                        dsc_rank_vars *out)
{
    DSC_ASSERT(plan->pool.count == 1); /* the common ones are then the host's own */
    dsc_rank_vars_common(plan, out);
    put(out, "RANK", "%d", place->rank);
    put(out, "LOCAL_RANK", "%d", place->local_rank);
    put(out, "CROSS_RANK", "%d", place->host);
    put(out, "DSC_JOB_TOKEN", "%s", secrets->job_token);
    put(out, "DSC_LAUNCHER_PID", "%lld", (long long)secrets->launcher_pid);
    if (place->rank == 0 && secrets->tty_columns > 0)
        put(out, "DSC_LAUNCH_TTY", "%d", secrets->tty_columns);
}

static bool is_replaced(const char *entry, const dsc_rank_vars *vars)
{
    const size_t bytes = strcspn(entry, "=");
    if (bytes == strlen("DSC_LAUNCH_TTY") && strncmp(entry, "DSC_LAUNCH_TTY", bytes) == 0)
        return true;
    for (int32_t i = 0; i < vars->count; i++)
        if (strlen(vars->var[i].name) == bytes && strncmp(entry, vars->var[i].name, bytes) == 0)
            return true;
    return false;
}

dsc_status dsc_rank_environ(dsc_alloc *alloc, char *const *base, const dsc_rank_vars *vars, char ***out, dsc_error *err)
{
    int64_t count = vars->count + 1;
    size_t text_bytes = 0;
    for (int32_t i = 0; i < vars->count; i++)
        text_bytes += strlen(vars->var[i].name) + strlen(dsc_rank_var_value(vars, i)) + 2;
    for (char *const *entry = base; *entry != NULL; entry++)
        count++;
    /* One block: the pointers, then the text of the new entries; the others are borrowed from `base`. */
    char **list = NULL;
    const int64_t pointer_bytes = count * (int64_t)sizeof *list;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, pointer_bytes + (int64_t)text_bytes, &list, err));
    char *text = (char *)list + pointer_bytes;
    int64_t used = 0;
    for (char *const *entry = base; *entry != NULL; entry++)
        if (!is_replaced(*entry, vars))
            list[used++] = *entry;
    for (int32_t i = 0; i < vars->count; i++) {
        list[used++] = text;
        text += sprintf(text, "%s=%s", vars->var[i].name, dsc_rank_var_value(vars, i)) + 1;
    }
    DSC_ASSERT(used < count);
    DSC_ASSERT(text == (char *)list + pointer_bytes + text_bytes);
    *out = list;
    return DSC_OK;
}
