/* slurm.c - the hosts of a Slurm allocation, from its variables. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/slurm.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hosts/slurm.h"

static const char list_name[] = "SLURM_JOB_NODELIST";

static dsc_status add_host(void *user, const char *name, dsc_error *err)
{
    dsc_host_pool *pool = user;
    const char *tasks = getenv("SLURM_TASKS_PER_NODE");
    dsc_host host;
    snprintf(host.name, sizeof host.name, "%s", name);
    if (dsc_host_pool_find(pool, host.name) >= 0 || pool->count == DSC_HOST_COUNT_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, list_name, "names \"%.60s\" twice, or more than %d hosts", name,
                        DSC_HOST_COUNT_MAX);
    const int32_t each = tasks != NULL ? dsc_slurm_tasks(tasks, (int32_t)pool->count) : 1;
    if (each < 1 || each > DSC_HOST_SLOTS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, "SLURM_TASKS_PER_NODE", "\"%.100s\": expected numbers from 1 to %d such as "
                        "4(x2),3, one for each node", tasks, DSC_HOST_SLOTS_MAX);
    dsc_host_set_slots(&host, each);
    return dsc_host_pool_add(pool, &host, err);
}

dsc_status dsc_slurm_pool(dsc_alloc *alloc, dsc_host_pool *out, dsc_error *err)
{
    out->alloc = alloc;
    return dsc_slurm_hosts(list_name, getenv(list_name), add_host, out, err);
}

bool dsc_slurm_is_inside(void)
{
    const char *list = getenv(list_name);
    return list != NULL && list[0] != 0;
}
