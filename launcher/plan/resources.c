/* resources.c - the hosts and slots of a job in order, and the ranks' settings.
 *
 * The order of the checks is DeepSpeed's: hosts, CUDA_VISIBLE_DEVICES, filter, number of nodes, ranks. Unlike there, a
 * request that the pool cannot meet is an error before anything starts, never silently less or more.
 * SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/resources.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hosts/slurm.h"
#include "base/io.h"
#include "base/world_channel.h"
#include "launcher/plan/pdsh.h"
#include "launcher/plan/slurm.h"

static const char default_hostfile[] = "/job/hostfile";

static void note(dsc_launcher_plan *plan, dsc_launcher_level level, const char *fmt, ...) DSC_PRINTF(3, 4);
static void note(dsc_launcher_plan *plan, dsc_launcher_level level, const char *fmt, ...)
{
    DSC_ASSERT(plan->note_count < DSC_LAUNCHER_NOTES_MAX);
    va_list args;
    va_start(args, fmt);
    plan->note[plan->note_count].level = level;
    vsnprintf(plan->note[plan->note_count].text, sizeof plan->note[0].text, fmt, args);
    va_end(args);
    plan->note_count++;
}

static bool is_slurm(const dsc_launcher_options *opt)
{
    return opt->launcher != NULL && strcasecmp(opt->launcher, "slurm") == 0;
}

/* The pool that the user named, if any. -H is a list with -np or when it looks like one, else a file. */
static dsc_status read_hosts(dsc_launcher_plan *plan, const dsc_launcher_options *opt, bool *named, dsc_error *err)
{
    *named = true;
    const bool counted = opt->rank_count >= 0 || opt->first_ranks > 0; /* -np */
    if (opt->hosts != NULL && (counted || dsc_hostlist_looks_like_one(opt->hosts))) {
        if (!dsc_hostlist_looks_like_one(opt->hosts) && dsc_io_kind(opt->hosts) == DSC_PATH_FILE)
            return DSC_FAIL(err, DSC_ERR_INPUT, "-H",
                            "with -np this is a list such as localhost:4,host2:4; write --hostfile \"%.100s\"",
                            opt->hosts);
        return dsc_hostlist_parse(plan->alloc, "-H", opt->hosts, &plan->pool, err);
    }
    if (opt->hosts != NULL || opt->hostfile != NULL)
        return dsc_hostfile_read(plan->alloc, opt->hosts != NULL ? opt->hosts : opt->hostfile, &plan->pool, err);
    if (dsc_io_kind(default_hostfile) == DSC_PATH_FILE) {
        note(plan, DSC_LAUNCHER_INFO, "hosts are those of %s", default_hostfile);
        return dsc_hostfile_read(plan->alloc, default_hostfile, &plan->pool, err);
    }
    if (is_slurm(opt) && dsc_slurm_is_inside())
        return dsc_slurm_pool(plan->alloc, &plan->pool, err);
    *named = false;
    return DSC_OK;
}

/* Name for this host in a pool that nobody gave: the one in the filter when that means this host, so that
 * "--include 127.0.0.1:0" works. */
static void local_name(const dsc_launcher_options *opt, const dsc_machine *machine, char out[DSC_HOST_NAME_BYTES])
{
    const char *filter = opt->include != NULL ? opt->include : opt->exclude;
    snprintf(out, DSC_HOST_NAME_BYTES, "localhost");
    if (filter == NULL)
        return;
    char name[DSC_HOST_NAME_BYTES];
    const char *why = NULL;
    size_t at = 0;
    if (dsc_host_name_scan(filter, strcspn(filter, ":@"), name, &why, &at) && dsc_machine_is_local(machine, name))
        snprintf(out, DSC_HOST_NAME_BYTES, "%s", name);
}

/* Without hosts the pool is this machine: its GPUs; or, for CPU ranks, the slots that a filter asks for, or one. */
static dsc_status make_local_pool(dsc_launcher_plan *plan, const dsc_launcher_options *opt, const dsc_machine *machine,
                                  dsc_error *err)
{
    char name[DSC_HOST_NAME_BYTES];
    const bool asked = opt->slots_per_node >= 0 || opt->node_count > 1;
    const bool use_visible = machine->visible != NULL && opt->include == NULL && opt->exclude == NULL && !asked;
    const bool slots_named = use_visible || (opt->include != NULL && strchr(opt->include, ':') != NULL);
    int32_t slots = machine->gpu_count > 0 ? machine->gpu_count : slots_named ? DSC_HOST_SLOTS_MAX : 1;
    if (opt->node_count > 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--num_nodes", "%d nodes need --hostfile or -H%s", opt->node_count,
                        is_slurm(opt) ? ", or an allocation: run this inside salloc or sbatch" : "");
    if (machine->visible != NULL && !use_visible)
        note(plan, DSC_LAUNCHER_WARNING, "CUDA_VISIBLE_DEVICES=%.100s is ignored: the flags say which slots",
             machine->visible);
    local_name(opt, machine, name);
    DSC_TRY(dsc_host_pool_single(plan->alloc, name, slots, &plan->pool, err));
    if (!use_visible)
        return DSC_OK;
    char filter[6 * DSC_HOST_SLOTS_MAX];
    if (snprintf(filter, sizeof filter, "localhost:%s", machine->visible) >= (int)sizeof filter)
        return DSC_FAIL(err, DSC_ERR_INPUT, "CUDA_VISIBLE_DEVICES", "is too long");
    dsc_error reason = DSC_ERROR_INIT;
    if (dsc_host_pool_filter(&plan->pool, "CUDA_VISIBLE_DEVICES", filter, false, &reason) != DSC_OK)
        return DSC_FAIL(err, reason.status, "CUDA_VISIBLE_DEVICES",
                        "\"%.100s\": expected device numbers such as 0,1; %s", machine->visible, reason.message);
    return DSC_OK;
}

/* A host has `count` slots of its own; `wanted` may be more only when the user says so. */
static dsc_status set_slots(dsc_host *host, const char *flag, int32_t wanted, bool free_choice, bool oversubscribe,
                            dsc_error *err)
{
    if (wanted > DSC_HOST_SLOTS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "%d ranks on one host; at most %d", wanted, DSC_HOST_SLOTS_MAX);
    if (wanted > host->slot_count && !free_choice && !oversubscribe)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "%d ranks on \"%.100s\", which has %d slot%s; ask for fewer, or add "
                        "--oversubscribe", wanted, host->name, host->slot_count, host->slot_count == 1 ? "" : "s");
    dsc_host_set_slots(host, wanted);
    return DSC_OK;
}

static dsc_status apply_counts(dsc_launcher_plan *plan, const dsc_launcher_options *opt, bool free_choice,
                               dsc_error *err)
{
    dsc_host_pool *pool = &plan->pool;
    if (opt->node_count > pool->count)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--num_nodes", "%d nodes, but there are %lld hosts", opt->node_count,
                        (long long)pool->count);
    if (opt->node_count > 0)
        dsc_host_pool_keep(pool, opt->node_count, INT64_MAX);
    for (int64_t i = 0; i < pool->count && opt->slots_per_node > 0; i++)
        DSC_TRY(set_slots(&pool->host[i], "--num_gpus", opt->slots_per_node, free_choice, opt->oversubscribe, err));
    const int32_t ranks = (int32_t)dsc_max_i64(opt->rank_count, opt->first_ranks);
    if (ranks <= 0)
        return DSC_OK;
    const int64_t missing = ranks - dsc_host_pool_slots(pool);
    if (missing > 0 && pool->count > 1 && !opt->oversubscribe)
        return DSC_FAIL(err, DSC_ERR_INPUT, "-np",
                        "%d ranks, but the hosts have %lld slots; raise the numbers in -H or the hostfile, or add "
                        "--oversubscribe",
                        ranks, (long long)dsc_host_pool_slots(pool));
    for (int64_t i = 0; i < pool->count && missing > 0; i++) /* each host takes its share of what is too much */
        DSC_TRY(set_slots(&pool->host[i], "-np",
                          (int32_t)(pool->host[i].slot_count + missing / pool->count + (i < missing % pool->count)),
                          free_choice, opt->oversubscribe, err));
    if (opt->rank_count > 0) /* else slots beyond the first ranks are spare */
        dsc_host_pool_keep(pool, pool->count, opt->rank_count);
    return DSC_OK;
}

/* With hosts of the user's own, CUDA_VISIBLE_DEVICES says which devices the slots mean, on every host; a list that is
 * too short for them says nothing. */
static void map_devices(dsc_launcher_plan *plan, const dsc_machine *machine)
{
    int32_t listed = 1, needed = 0;
    if (machine->visible == NULL)
        return;
    for (const char *at = machine->visible; *at != 0; at++)
        listed += *at == ',';
    for (int64_t i = 0; i < plan->pool.count; i++)
        for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
            if (dsc_host_has_slot(&plan->pool.host[i], slot))
                needed = (int32_t)dsc_max_i64(needed, slot + 1);
    if (listed >= needed)
        plan->visible = machine->visible;
    else
        note(plan, DSC_LAUNCHER_WARNING, "CUDA_VISIBLE_DEVICES=%.100s is ignored: %d device%s for hosts with slots up "
             "to %d", machine->visible, listed, listed == 1 ? "" : "s", needed - 1);
}

static dsc_status make_places(dsc_launcher_plan *plan, dsc_error *err)
{
    const int64_t ranks = dsc_host_pool_slots(&plan->pool);
    if (ranks > DSC_LAUNCHER_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "", "%lld ranks; at most %d", (long long)ranks, DSC_LAUNCHER_RANKS_MAX);
    DSC_TRY(dsc_alloc_zeroed(plan->alloc, DSC_TAG_CONTROL, ranks, (int64_t)sizeof *plan->place, &plan->place, err));
    for (int64_t h = 0; h < plan->pool.count; h++) {
        int32_t local_rank = 0;
        for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
            if (dsc_host_has_slot(&plan->pool.host[h], slot)) {
                plan->place[plan->world_size] = (dsc_place){ plan->world_size, (int32_t)h, slot, local_rank++ };
                plan->world_size++;
            }
    }
    DSC_ASSERT(plan->world_size == ranks);
    return DSC_OK;
}

/* A name that means another host on each. */
static bool is_loopback(const char *name)
{
    return strcasecmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 || strcmp(name, "::1") == 0;
}

/* 127.0.0.1 for one host, else the first host under a name that the others can use. */
static dsc_status choose_master(dsc_launcher_plan *plan, const dsc_launcher_options *opt, const dsc_machine *machine,
                                dsc_error *err)
{
    const char *first = plan->pool.host[0].name;
    const char *sign = strchr(first, '@');
    const char *job = getenv("SLURM_JOB_ID");
    plan->master_port = opt->master_port;
    if (plan->master_port == 0)
        plan->master_port = is_slurm(opt) && job != NULL ? dsc_slurm_port(job) : 29500;
    if (opt->master_addr != NULL) {
        const char *why = NULL;
        size_t at = 0;
        if (!dsc_host_name_scan(opt->master_addr, strlen(opt->master_addr), plan->master_addr, &why, &at) ||
            strchr(plan->master_addr, '@') != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--master_addr", "\"%.100s\" is not a host name or an address: %s",
                            opt->master_addr, why != NULL ? why : "no user@ here");
        return DSC_OK;
    }
    if (plan->local)
        first = "127.0.0.1";
    else if (sign != NULL)
        first = sign + 1;
    else if (is_loopback(first))
        first = machine->name;
    snprintf(plan->master_addr, sizeof plan->master_addr, "%s", first);
    return DSC_OK;
}

/* --no_ssh: the user starts this command on each host, and says which one this is. */
static dsc_status choose_here(dsc_launcher_plan *plan, const dsc_launcher_options *opt, dsc_error *err)
{
    const char *first = plan->pool.host[0].name;
    if (!opt->no_ssh || plan->pool.count == 1) {
        if (opt->node_rank > 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--node_rank", "%d, but there is one host, number 0", opt->node_rank);
        return DSC_OK;
    }
    if (opt->node_rank < 0 || opt->node_rank >= plan->pool.count)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--node_rank", "with --no_ssh it says which of the %lld hosts this is; "
                        "expected 0 to %lld", (long long)plan->pool.count, (long long)plan->pool.count - 1);
    if (opt->master_addr == NULL && is_loopback(first))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--no_ssh", "\"%.60s\" means another host on each; name the first host as "
                        "the others see it, or give --master_addr", first);
    plan->here = opt->node_rank;
    plan->local = true;
    return DSC_OK;
}

/* Cores to divide and threads for each rank, when they are here. */
static dsc_status divide_cores(dsc_launcher_plan *plan, const dsc_launcher_options *opt, const dsc_machine *machine,
                               dsc_error *err)
{
    const int32_t ranks = plan->pool.host[plan->here].slot_count;
    plan->bind = opt->bind_cores;
    if (plan->bind)
        return dsc_cores_divide(machine, opt->core_list, ranks, &plan->bind_cores, &plan->thread_count, err);
    plan->thread_count = (int32_t)dsc_max_i64(1, machine->core_count / ranks);
    return DSC_OK;
}

/* Errors in it are reported before anything starts. */
static dsc_status look_at_pdsh(dsc_launcher_plan *plan, const dsc_launcher_options *opt, dsc_error *err)
{
    dsc_pdsh_args words;
    DSC_TRY(dsc_pdsh_read(opt, plan->pool.host[0].name, &words, err));
    if (opt->launcher != NULL && strcasecmp(opt->launcher, "pdsh") == 0)
        note(plan, DSC_LAUNCHER_INFO, "--launcher pdsh: an ssh to each host, as pdsh would start it, with its "
             "PDSH_SSH_ARGS; not pdsh itself, which passes programs no input");
    else if (words.count > 0)
        note(plan, DSC_LAUNCHER_INFO, "ssh is given what PDSH_SSH_ARGS and PDSH_SSH_ARGS_APPEND say, as by DeepSpeed; "
             "--launcher ssh: it is not");
    return DSC_OK;
}

dsc_status dsc_launcher_resolve(dsc_alloc *alloc, const dsc_launcher_options *opt, const dsc_machine *machine,
                                dsc_launcher_plan *out, dsc_error *err)
{
    out->alloc = alloc;
    DSC_TRY(read_hosts(out, opt, &out->named, err));
    const bool named = out->named;
    if (!named)
        DSC_TRY(make_local_pool(out, opt, machine, err));
    if (opt->include != NULL)
        DSC_TRY(dsc_host_pool_filter(&out->pool, "--include", opt->include, false, err));
    if (opt->exclude != NULL)
        DSC_TRY(dsc_host_pool_filter(&out->pool, "--exclude", opt->exclude, true, err));
    if (!named && machine->gpu_count == 0 && out->pool.host[0].slot_count == DSC_HOST_SLOTS_MAX)
        dsc_host_pool_keep(&out->pool, 1, 1); /* the bare name of a host without GPUs is one rank */
    /* Slurm says what a host may be given. */
    DSC_TRY(apply_counts(out, opt, (!named && machine->gpu_count == 0) || is_slurm(opt), err));
    if (opt->comm != NULL && strcmp(opt->comm, "shm") == 0 && out->pool.count > 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--comm", "shm is memory that ranks of one host share, and there are %lld; "
                        "use tcp or gloo", (long long)out->pool.count);
    DSC_TRY(make_places(out, err));
    if (opt->least_ranks > out->world_size)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--min_np", "%d, more than the %d rank%s of the job", opt->least_ranks,
                        out->world_size, out->world_size == 1 ? "" : "s");
    if (opt->least_ranks > 0 && out->world_size > DSC_WORLD_RANKS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--min_np", "ranks leave and join among at most %d, and there are %d",
                        DSC_WORLD_RANKS_MAX, out->world_size);
    if (opt->chaos.every_ms[DSC_CHAOS_CUT] > 0 && out->pool.count == 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--chaos", "cut=S cuts connections between hosts, and there is one host");
    out->local = out->pool.count == 1 && dsc_machine_is_local(machine, out->pool.host[0].name);
    out->hide_gpus = machine->gpu_count == 0 && machine->visible == NULL && getenv("CUDA_VISIBLE_DEVICES") != NULL;
    DSC_TRY(choose_master(out, opt, machine, err));
    DSC_TRY(choose_here(out, opt, err));
    if (named)
        map_devices(out, machine);
    if (opt->bind_cores && getenv("KMP_AFFINITY") != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--bind_cores_to_rank",
                        "cannot be used while KMP_AFFINITY is set; unset it");
    if (out->local)
        DSC_TRY(divide_cores(out, opt, machine, err));
    if (!out->local && !opt->no_ssh)
        DSC_TRY(look_at_pdsh(out, opt, err));
    const int32_t here_count = out->pool.host[out->here].slot_count;
    if (out->local && machine->gpu_count == 0 && (out->world_size > 1 || opt->slots_per_node > 0))
        note(out, DSC_LAUNCHER_INFO, "no GPU on this host: starting %d CPU rank%s", here_count,
             here_count == 1 ? "" : "s");
    if (opt->module)
        note(out, DSC_LAUNCHER_WARNING,
             "--module does nothing here: PROGRAM is started itself, without an interpreter");
    return DSC_OK;
}

void dsc_launcher_plan_close(dsc_launcher_plan *plan)
{
    if (plan->alloc != NULL)
        dsc_alloc_free(plan->alloc, plan->place);
    dsc_host_pool_close(&plan->pool);
    *plan = (dsc_launcher_plan)DSC_LAUNCHER_PLAN_INIT;
}
