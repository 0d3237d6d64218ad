/* runner.c - see runner.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/runners/runner.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "launcher/protocol/host_task.h"

dsc_runner dsc_runner_of(const dsc_launcher_options *opt)
{
    static const struct {
        const char *name;
        dsc_runner runner;
    } runners[] = { { "openmpi", DSC_RUNNER_OPENMPI },
                    { "mpich", DSC_RUNNER_MPICH },
                    { "impi", DSC_RUNNER_IMPI },
                    { "mvapich", DSC_RUNNER_MVAPICH },
                    { "slurm", DSC_RUNNER_SLURM } };
    for (size_t i = 0; i < DSC_COUNT(runners) && opt->launcher != NULL; i++)
        if (strcasecmp(opt->launcher, runners[i].name) == 0)
            return runners[i].runner;
    return DSC_RUNNER_NONE;
}

static dsc_status add(dsc_runner_command *c, dsc_error *err, const char *fmt, ...) DSC_PRINTF(3, 4);
static dsc_status add(dsc_runner_command *c, dsc_error *err, const char *fmt, ...)
{
    char **grown = NULL, *text = NULL;
    va_list args;
    va_start(args, fmt);
    const int bytes = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    DSC_ASSERT(bytes >= 0);
    if (c->argc + 1 >= c->capacity) {
        const int32_t capacity = c->capacity > 0 ? 2 * c->capacity : 64;
        DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_CONTROL, capacity, (int64_t)sizeof *grown, &grown, err));
        if (c->argc > 0)
            memcpy(grown, c->argv, (size_t)c->argc * sizeof *grown);
        dsc_alloc_free(c->alloc, c->argv);
        c->argv = grown;
        c->capacity = capacity;
    }
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_CONTROL, bytes + 1, 1, &text, err));
    va_start(args, fmt);
    vsnprintf(text, (size_t)bytes + 1, fmt, args);
    va_end(args);
    c->argv[c->argc++] = text;
    return DSC_OK;
}

/* ---- hosts ---- */

/* The slots that this list names on every host, or -1 when they differ. */
static int32_t slots_of_each(const dsc_launcher_plan *plan)
{
    for (int64_t i = 1; i < plan->pool.count; i++)
        if (plan->pool.host[i].slot_count != plan->pool.host[0].slot_count)
            return -1;
    return plan->pool.host[0].slot_count;
}

typedef enum host_form { HOSTS_ONLY, HOSTS_WITH_SLOTS, HOST_OF_EACH_RANK } host_form;

/* "a,b" or "a:1,b:2" or "a,b,b". Owned by the caller. */
static dsc_status join_hosts(dsc_alloc *alloc, const dsc_launcher_plan *plan, host_form form, char **out,
                             dsc_error *err)
{
    const int64_t names = form == HOST_OF_EACH_RANK ? plan->world_size : plan->pool.count;
    const int64_t bytes = names * (DSC_HOST_NAME_BYTES + 16);
    size_t used = 0;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, bytes, 1, out, err));
    for (int64_t i = 0; i < names; i++) {
        const dsc_host *host = &plan->pool.host[form == HOST_OF_EACH_RANK ? plan->place[i].host : i];
        used += (size_t)snprintf(*out + used, (size_t)bytes - used, "%s%s", i > 0 ? "," : "", host->name);
        if (form == HOSTS_WITH_SLOTS)
            used += (size_t)snprintf(*out + used, (size_t)bytes - used, ":%d", host->slot_count);
    }
    return DSC_OK;
}

static dsc_status need_equal_slots(const dsc_launcher_plan *plan, const dsc_launcher_options *opt, dsc_error *err)
{
    if (slots_of_each(plan) > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher", "%s starts as many ranks on each host, but the hosts have "
                    "different numbers of slots; --num_gpus makes them equal, or leave --launcher out", opt->launcher);
}

/* ---- variables for the ranks ---- */

static dsc_status set_env(dsc_runner_command *c, const dsc_launcher_plan *plan, const dsc_launcher_options *opt,
                          dsc_error *err)
{
    char text[DSC_HOST_NAME_BYTES + 32], token[DSC_JOB_TOKEN_CHARS + 1];
    char devices[DSC_DEVICES_BYTES];
    dsc_host_task first, other;
    DSC_TRY(dsc_exports_open(c->alloc, opt, plan->pool.count > 1 || !plan->named, &c->env, err));
    snprintf(text, sizeof text, "MASTER_ADDR=%s", plan->master_addr);
    DSC_TRY(dsc_exports_set(&c->env, text, err));
    snprintf(text, sizeof text, "MASTER_PORT=%d", plan->master_port);
    DSC_TRY(dsc_exports_set(&c->env, text, err));
    DSC_TRY(dsc_job_token_new(token, err));
    snprintf(text, sizeof text, "DSC_JOB_TOKEN=%s", token);
    DSC_TRY(dsc_exports_set(&c->env, text, err));
    /* Both MPIs would bind each rank to one core, all its threads with it; who sets this himself keeps it. */
    if (dsc_runner_of(opt) == DSC_RUNNER_IMPI && getenv("I_MPI_PIN") == NULL)
        DSC_TRY(dsc_exports_set(&c->env, "I_MPI_PIN=0", err));
    if (dsc_runner_of(opt) == DSC_RUNNER_MVAPICH && getenv("MV2_ENABLE_AFFINITY") == NULL)
        DSC_TRY(dsc_exports_set(&c->env, "MV2_ENABLE_AFFINITY=0", err));
    if (!plan->named || plan->hide_gpus || dsc_runner_of(opt) == DSC_RUNNER_SLURM) /* Slurm gives devices itself */
        return DSC_OK;
    /* One environment for all: it can name devices only when they are the same everywhere. */
    dsc_host_task_of_plan(plan, 0, devices, &first);
    for (int64_t i = 1; i < plan->pool.count; i++) {
        char others[DSC_DEVICES_BYTES];
        dsc_host_task_of_plan(plan, (int32_t)i, others, &other);
        if (first.devices == NULL || other.devices == NULL || strcmp(first.devices, other.devices) != 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher", "%s gives all hosts one CUDA_VISIBLE_DEVICES, but the "
                            "slots differ from host to host; leave --launcher out", opt->launcher);
    }
    char *entry = NULL;
    const int64_t bytes = (int64_t)strlen(first.devices != NULL ? first.devices : "") + 32;
    DSC_TRY(dsc_alloc_zeroed(c->alloc, DSC_TAG_CONTROL, bytes, 1, &entry, err));
    snprintf(entry, (size_t)bytes, "CUDA_VISIBLE_DEVICES=%s", first.devices != NULL ? first.devices : "");
    const dsc_status status = first.devices != NULL ? dsc_exports_set(&c->env, entry, err) : DSC_OK;
    dsc_alloc_free(c->alloc, entry);
    return status;
}

/* ---- the commands ---- */

/* Names only: values are read from the environment, and so stand in no argument list. */
static dsc_status add_names(dsc_runner_command *c, const char *flag, dsc_error *err)
{
    for (int64_t i = 0; i < c->env.count; i++) {
        DSC_TRY(add(c, err, "%s", flag));
        DSC_TRY(add(c, err, "%.*s", (int)strcspn(c->env.entry[i], "="), c->env.entry[i]));
    }
    return DSC_OK;
}

static dsc_status add_launcher_args(dsc_runner_command *c, const dsc_launcher_options *opt, dsc_error *err)
{
    for (const char *at = opt->launcher_args; at != NULL && *at != 0;) {
        const size_t blanks = strspn(at, " \t"), bytes = strcspn(at + blanks, " \t");
        if (bytes > 0)
            DSC_TRY(add(c, err, "%.*s", (int)bytes, at + blanks));
        at += blanks + bytes;
    }
    return DSC_OK;
}

static dsc_status build_openmpi(dsc_runner_command *c, const dsc_launcher_plan *plan, const dsc_launcher_options *opt,
                                dsc_error *err)
{
    char *hosts = NULL;
    DSC_TRY(add(c, err, "mpirun"));
    DSC_TRY(add(c, err, "-n"));
    DSC_TRY(add(c, err, "%d", plan->world_size));
    DSC_TRY(join_hosts(c->alloc, plan, HOSTS_WITH_SLOTS, &hosts, err));
    dsc_status status = add(c, err, "--host");
    if (status == DSC_OK)
        status = add(c, err, "%s", hosts);
    dsc_alloc_free(c->alloc, hosts);
    DSC_TRY(status);
    DSC_TRY(add_launcher_args(c, opt, err));
    return add_names(c, "-x", err);
}

static dsc_status build_hydra(dsc_runner_command *c, const dsc_launcher_plan *plan, const dsc_launcher_options *opt,
                              dsc_error *err)
{
    char *hosts = NULL;
    DSC_TRY(add(c, err, "mpirun"));
    DSC_TRY(add(c, err, "-n"));
    DSC_TRY(add(c, err, "%d", plan->world_size));
    DSC_TRY(add(c, err, "-ppn"));
    DSC_TRY(add(c, err, "%d", slots_of_each(plan)));
    DSC_TRY(join_hosts(c->alloc, plan, HOSTS_ONLY, &hosts, err));
    dsc_status status = add(c, err, "-hosts");
    if (status == DSC_OK)
        status = add(c, err, "%s", hosts);
    dsc_alloc_free(c->alloc, hosts);
    DSC_TRY(status);
    if (dsc_runner_of(opt) == DSC_RUNNER_IMPI) /* MPICH's own passes the whole environment on unasked */
        DSC_TRY(add(c, err, "-genvall"));
    return add_launcher_args(c, opt, err);
}

static dsc_status build_slurm(dsc_runner_command *c, const dsc_launcher_plan *plan, const dsc_launcher_options *opt,
                              dsc_error *err)
{
    char *hosts = NULL;
    DSC_TRY(add(c, err, "srun"));
    DSC_TRY(add(c, err, "--ntasks=%d", plan->world_size));
    DSC_TRY(add(c, err, "--nodes=%lld", (long long)plan->pool.count));
    const bool equal = slots_of_each(plan) > 0;
    if (equal)
        DSC_TRY(add(c, err, "--ntasks-per-node=%d", slots_of_each(plan)));
    else
        DSC_TRY(add(c, err, "--distribution=arbitrary")); /* as the list says, whose names follow each other by rank */
    if (plan->named) {
        DSC_TRY(join_hosts(c->alloc, plan, equal ? HOSTS_ONLY : HOST_OF_EACH_RANK, &hosts, err));
        const dsc_status status = add(c, err, "--nodelist=%s", hosts);
        dsc_alloc_free(c->alloc, hosts);
        DSC_TRY(status);
    }
    DSC_TRY(add(c, err, "--export=ALL"));
    DSC_TRY(add(c, err, "--kill-on-bad-exit=1"));
    return add_launcher_args(c, opt, err);
}

dsc_status dsc_runner_build(dsc_alloc *alloc, const dsc_launcher_plan *plan, const dsc_launcher_options *opt,
                            const char *program, dsc_runner_command *out, dsc_error *err)
{
    *out = (dsc_runner_command){ .alloc = alloc };
    if (dsc_runner_of(opt) != DSC_RUNNER_OPENMPI && dsc_runner_of(opt) != DSC_RUNNER_SLURM)
        DSC_TRY(need_equal_slots(plan, opt, err));
    DSC_TRY(set_env(out, plan, opt, err));
    switch (dsc_runner_of(opt)) {
    case DSC_RUNNER_OPENMPI: DSC_TRY(build_openmpi(out, plan, opt, err)); break;
    case DSC_RUNNER_MPICH:
    case DSC_RUNNER_IMPI:
    case DSC_RUNNER_MVAPICH: DSC_TRY(build_hydra(out, plan, opt, err)); break;
    case DSC_RUNNER_SLURM: DSC_TRY(build_slurm(out, plan, opt, err)); break;
    case DSC_RUNNER_NONE: DSC_ASSERT(false); break;
    }
    DSC_TRY(add(out, err, "%s", program));
    for (int i = 1; i < opt->program.argc; i++)
        DSC_TRY(add(out, err, "%s", opt->program.argv[i]));
    return DSC_OK;
}

void dsc_runner_close(dsc_runner_command *command)
{
    for (int32_t i = 0; i < command->argc; i++)
        dsc_alloc_free(command->alloc, command->argv[i]);
    if (command->alloc != NULL)
        dsc_alloc_free(command->alloc, command->argv);
    dsc_exports_close(&command->env);
    *command = (dsc_runner_command){ .alloc = NULL };
}

dsc_status dsc_runner_exec(const dsc_runner_command *command, dsc_error *err)
{
    extern char **environ;
    char **env = NULL;
    DSC_TRY(dsc_environ_with(command->alloc, environ, command->env.entry, &env, err));
    fflush(NULL);
    execvpe(command->argv[0], command->argv, env);
    const int reason = errno;
    dsc_alloc_free(command->alloc, env);
    return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher", "%s cannot be started: %s; install it, or leave --launcher out",
                    command->argv[0], strerror(reason));
}
