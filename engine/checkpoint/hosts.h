/* hosts.h - which ranks save into one folder. The same name can be another folder on each host (its own
 * disk); ranks find out by what they see there, not by where they think that they are.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_HOSTS_H
#define DSC_ENGINE_CHECKPOINT_HOSTS_H

#include "engine/checkpoint/internal.h"

/* Folders, numbered by their first ranks. Lists are NULL where nobody looked: all ranks save into rank 0's. */
typedef struct dsc_ckpt_hosts {
    dsc_alloc *alloc;
    int32_t count;
    int32_t mine;                  /* this rank's */
    int32_t *of_rank;              /* [W] */
    int32_t *leader;               /* [count] the first rank of each, which makes and commits it */
    char (*name)[DSC_CKPT_HOST_BYTES]; /* [count] of the host */
} dsc_ckpt_hosts;

/* Collective; every rank returns the same verdict. Without ctx->node_local there is one and nothing is looked at; with
 * it `dir` is made where it is missing. To be closed also after a failure. */
DSC_MUST_USE dsc_status dsc_ckpt_hosts_open(const dsc_ckpt_ctx *c, const char *dir, dsc_ckpt_hosts *out,
                                            dsc_error *err);
void dsc_ckpt_hosts_close(dsc_ckpt_hosts *hosts); /* safe on a zeroed one */
static inline int32_t dsc_ckpt_host_of(const dsc_ckpt_hosts *hosts, int32_t rank)
{
    DSC_ASSERT(rank >= 0);
    return hosts->of_rank != NULL ? hosts->of_rank[rank] : 0;
}
static inline int32_t dsc_ckpt_leader(const dsc_ckpt_hosts *hosts, int32_t host)
{
    DSC_ASSERT(host >= 0);
    DSC_ASSERT(hosts->leader == NULL || host < hosts->count);
    return hosts->leader != NULL ? hosts->leader[host] : 0;
}

#endif
