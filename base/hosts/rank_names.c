/* rank_names.c - see rank_names.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/hosts/rank_names.h"

#include <string.h>

const dsc_rank_names dsc_rank_family_names[DSC_RANK_FAMILIES] = {
    [DSC_RANK_PLAIN] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "CROSS_RANK",
                         "CROSS_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE" },
    [DSC_RANK_OPEN_MPI] = { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL, NULL, NULL, NULL },
    [DSC_RANK_HYDRA] = { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL, NULL, NULL, NULL },
    [DSC_RANK_SLURM] = { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", NULL,
                         "SLURM_NODEID", "SLURM_STEP_NUM_NODES", NULL, NULL },
};

bool dsc_rank_name_is_known(const char *name, size_t bytes)
{
    for (int family = 0; family < DSC_RANK_FAMILIES; family++) {
        const dsc_rank_names *n = &dsc_rank_family_names[family];
        const char *const names[] = { n->rank, n->size, n->local_rank, n->local_size, n->local_size_alias,
                                      n->node, n->node_count, n->node_alias, n->node_count_alias };
        for (size_t i = 0; i < DSC_COUNT(names); i++)
            if (names[i] != NULL && strlen(names[i]) == bytes && memcmp(name, names[i], bytes) == 0)
                return true;
    }
    return false;
}
