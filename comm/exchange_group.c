/* exchange_group.c - the ranks of a communicator as a group that exchanges values inside a computation.
 * SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

static dsc_status all_gather(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err)
{
    const dsc_comm_group *of = user;
    return dsc_comm_all_gather(of->comm, of->channel, recv, send, bytes, DSC_U8, NULL, err);
}

static dsc_status all_to_all(void *user, void *recv, const void *send, int64_t bytes, dsc_error *err)
{
    const dsc_comm_group *of = user;
    return dsc_comm_all_to_all(of->comm, of->channel, recv, send, bytes, NULL, err);
}

void dsc_comm_group_init(dsc_comm_group *group, dsc_comm *comm, int32_t channel)
{
    *group = (dsc_comm_group) { .group = { .size = dsc_comm_size(comm),
                                           .rank = dsc_comm_rank(comm),
                                           .all_gather = all_gather,
                                           .all_to_all = all_to_all,
                                           .user = group },
                                .comm = comm,
                                .channel = channel };
}
