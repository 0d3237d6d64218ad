/* rank_env.c - DeepSpeed's names for a rank's place, some of torchrun's, and seven of our own.
 *
 *   DSC_JOB_TOKEN      the same for all ranks of this start, new for each: two jobs on a host never meet
 *   DSC_LAUNCHER_PID   the process whose death ends the ranks: dsc-launch, or its agent on this host
 *   DSC_FLIGHT         where the rank writes what its collectives are doing (base/flight_log.h)
 *   DSC_LAUNCH_TTY     columns of the terminal that rank 0's stdout, a pipe, ends in: a live bar may be drawn
 *   DSC_WORLD_CHANNEL  with --min_np: the descriptor of the rank's world channel (base/world_channel.h)
 *   DSC_WORLD_SIZES    with --min_np: the fewest and the most ranks of the job, "2:6"
 *   DSC_CHAOS_DISK_MS  with --chaos disk=MS: how long a file operation waits
 *   DSC_RESTART_COUNT  with --max_restarts: how often the job was started again
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/node/rank_env.h"

#include "base/flight_log.h"
#include "base/hosts/envfile.h"
#include "base/hosts/rank_names.h"
#include "base/world_channel.h"

#include <stdarg.h>
#include <stdio.h>
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

/* The user's own number of threads in an environment, or NULL. A very long one is inherited, not shown. */
static const char *own_threads(char *const *env)
{
    static const char name[] = "OMP_NUM_THREADS=";
    for (; *env != NULL; env++)
        if (strncmp(*env, name, sizeof name - 1) == 0 && strlen(*env) < 256)
            return *env + sizeof name - 1;
    return NULL;
}

static void put_threads(dsc_rank_vars *vars, char *const *env, int32_t thread_count)
{
    const char *threads = own_threads(env);
    if (threads != NULL && threads[0] != 0)
        put(vars, "OMP_NUM_THREADS", "%s", threads);
    else if (thread_count > 0)
        put(vars, "OMP_NUM_THREADS", "%d", thread_count);
}

void dsc_rank_vars_common(const dsc_launcher_plan *plan, dsc_rank_vars *out)
{
    extern char **environ;
    const dsc_host *first = &plan->pool.host[0];
    bool equal_sizes = true;
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task task;
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
    dsc_host_task_of_plan(plan, 0, devices, &task);
    if (plan->pool.count == 1 && !plan->hide_gpus && task.devices != NULL)
        put(out, "CUDA_VISIBLE_DEVICES", "%s", task.devices);
    put_threads(out, environ, plan->thread_count);
}

void dsc_rank_vars_fill(const dsc_host_task *task, int32_t index, int world_fd, dsc_rank_vars *out)
{
    out->count = 0;
    out->text_bytes = 0;
    put(out, "RANK", "%d", task->first_rank + index);
    put(out, "LOCAL_RANK", "%d", index);
    put(out, "WORLD_SIZE", "%d", task->world_size);
    put(out, "LOCAL_SIZE", "%d", task->rank_count);
    put(out, "LOCAL_WORLD_SIZE", "%d", task->rank_count);
    put(out, "CROSS_RANK", "%d", task->host);
    put(out, "CROSS_SIZE", "%d", task->host_count);
    put(out, "MASTER_ADDR", "%s", task->master_addr);
    put(out, "MASTER_PORT", "%d", task->master_port);
    if (task->devices != NULL)
        put(out, "CUDA_VISIBLE_DEVICES", "%s", task->devices);
    put_threads(out, task->env, task->thread_count);
    if (task->job_token[0] != 0)
        put(out, "DSC_JOB_TOKEN", "%s", task->job_token);
    put(out, "DSC_LAUNCHER_PID", "%lld", (long long)task->launcher_pid);
    if (task->flight != NULL) {
        char text[DSC_FLIGHT_TEXT_BYTES];
        put(out, "DSC_FLIGHT", "%s", dsc_flight_log_text(task->flight, index, text));
    }
    if (task->restart_limit > 0) {
        put(out, "DSC_RESTART_COUNT", "%d", task->restart_count);
        put(out, "TORCHELASTIC_RESTART_COUNT", "%d", task->restart_count);
        put(out, "TORCHELASTIC_MAX_RESTARTS", "%d", task->restart_limit);
    }
    if (task->disk_ms > 0)
        put(out, DSC_WORLD_CHAOS_DISK, "%d", task->disk_ms);
    if (world_fd >= 0) {
        put(out, DSC_WORLD_CHANNEL, "%d", world_fd);
        put(out, DSC_WORLD_SIZES, "%d:%d", task->least_ranks, task->most_ranks);
    }
    if (task->first_rank + index == 0 && task->tty_columns > 0)
        put(out, "DSC_LAUNCH_TTY", "%d", task->tty_columns);
}

/* Leftovers of another launch; OMP_NUM_THREADS and CUDA_VISIBLE_DEVICES are the user's too. The numbers of the task
 * that an outer launcher (srun, mpirun) started are those of dsc-launch: a rank would find two identities. */
static bool is_replaced(const char *entry, const dsc_rank_vars *vars)
{
    const size_t bytes = strcspn(entry, "=");
    if (dsc_env_is_launchers(entry, bytes) || dsc_rank_name_is_known(entry, bytes))
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
