/* rank_names.h - the environment variables by which launchers name a rank, in four families. comm/rank_info.c reads
 * them, and dsc-launch keeps those of an outer launcher from its ranks. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_HOSTS_RANK_NAMES_H
#define DSC_BASE_HOSTS_RANK_NAMES_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PLAIN: dsc-launch, DeepSpeed, torchrun. HYDRA: MPICH's. */
typedef enum dsc_rank_family {
    DSC_RANK_PLAIN, DSC_RANK_OPEN_MPI, DSC_RANK_HYDRA, DSC_RANK_SLURM, DSC_RANK_FAMILIES
} dsc_rank_family;

/* Names of the same number in each family; NULL: that family has none. An alias is torchrun's plain name. */
typedef struct dsc_rank_names {
    const char *rank, *size, *local_rank, *local_size, *local_size_alias, *node, *node_count, *node_alias,
        *node_count_alias;
} dsc_rank_names;
extern const dsc_rank_names dsc_rank_family_names[DSC_RANK_FAMILIES];

/* Whether name[bytes] is one of them, or an alias of the plain family. */
bool dsc_rank_name_is_known(const char *name, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
