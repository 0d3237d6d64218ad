/* sub_communicator.c - communicators for parts of a communicator's ranks: rows and columns of the rank grid, the ranks
 * of a host.
 *
 * All ranks of the parent exchange color and key. Everybody computes all groups from the same data, so nothing has to
 * be negotiated. Then each group opens as its parent did. Threads use a world that the group's first rank makes.
 * Processes use a rendezvous named after the parent and the group; over several hosts the first rank listens. GPUs use
 * the host communicator of their group.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_front.h"

typedef struct word {
    int32_t color, key, node;
    int32_t status; /* the second time: could the first rank of a group make its world */
    dsc_local_world *world; /* threads of one process, so everybody can use the address */
    dsc_net_address gate;   /* address at which the first rank of a group on several hosts listens */
} word;

/* This rank's group, as the words of all say it. */
typedef struct group {
    int32_t rank, size, first; /* first: the parent's rank that is 0 here */
    int32_t local_rank, local_size, node, node_count;
} group;

/* Rank a comes before rank b in a group. */
static bool comes_before(const word *all, int32_t a, int32_t b)
{
    return all[a].key < all[b].key || (all[a].key == all[b].key && a < b);
}

/* Is r the lowest rank of its group that is on its node? */
static bool opens_node(const word *all, int32_t r)
{
    for (int32_t q = 0; q < r; q++)
        if (all[q].color == all[r].color && all[q].node == all[r].node)
            return false;
    return true;
}

static void find_group(const word *all, int32_t parent_size, int32_t me, group *out)
{
    *out = (group){ .first = me };
    for (int32_t r = 0; r < parent_size; r++) {
        if (all[r].color != all[me].color)
            continue;
        const bool here = all[r].node == all[me].node, before = comes_before(all, r, me);
        out->size++;
        out->rank += before;
        out->local_size += here;
        out->local_rank += here && before;
        out->node_count += opens_node(all, r);
        out->node += opens_node(all, r) && all[r].node < all[me].node;
        if (comes_before(all, r, out->first))
            out->first = r;
    }
}

static dsc_status tell(dsc_comm *parent, word *all, dsc_error *err)
{
    return dsc_comm_all_gather(parent, 0, all, &all[parent->rank], (int64_t)sizeof *all, DSC_U8, NULL, err);
}

/* The group's name on its host; the children of one parent, and those of its children, differ in it. */
static dsc_status name_group(dsc_comm *parent, const dsc_rank_info *info, int32_t color, char *out, dsc_error *err)
{
    const char *token = info->job_token != NULL ? info->job_token : "";
    char job[64] = "";
    if (token[0] == 0) /* user and port stand for the token */
        snprintf(job, sizeof job, "%u:%d", (unsigned)geteuid(), (int)info->master_port);
    const int wanted = snprintf(out, DSC_COMM_GROUP_NAME, "%s%s/%u.%d", parent->group_name[0] != 0 ? "" : token,
                                parent->group_name[0] != 0 ? parent->group_name : job, parent->split_count,
                                (int)color);
    if (wanted < 0 || wanted >= DSC_COMM_GROUP_NAME)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "DSC_JOB_TOKEN", "too long a token for groups of ranks: %d bytes",
                        (int)strlen(token));
    return DSC_OK;
}

static dsc_status check_group(const dsc_comm *parent, const word *all, dsc_error *err)
{
    for (int32_t r = 0; r < parent->size; r++) {
        group g;
        if (all[r].color < 0)
            continue;
        find_group(all, parent->size, r, &g);
        if (g.node_count > 1 && parent->transport->ops->address == NULL)
            return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm",
                            "a group of ranks on %d hosts: over \"%s\" groups are built within a host only; \"tcp\", "
                            "\"hier\" and \"gloo\" build them over hosts",
                            (int)g.node_count, parent->ops->name);
    }
    return DSC_OK;
}

static dsc_local_world *world_of(const word *all, const group *mine)
{
    return mine->size > 1 ? all[mine->first].world : NULL;
}

/* The first rank's world, or the gate where the others of its group come to it. */
static dsc_status prepare_group(dsc_comm *parent, word *me, const group *mine, bool threads, int *gate, dsc_error *err)
{
    dsc_net_address own;
    if (threads) {
        DSC_TRY(dsc_local_world_open(mine->size, &me->world, err));
        dsc_local_world_hold(me->world, mine->size);
        return DSC_OK;
    }
    if (mine->node_count == 1)
        return DSC_OK;
    *gate = parent->transport->ops->address(parent->transport, &own) ? dsc_net_listen(&own, &me->gate) : -1;
    if (*gate < 0)
        return DSC_FAIL(err, DSC_ERR_COMM, "comm", "cannot listen for the other ranks of the group: %s",
                        strerror(errno));
    return DSC_OK;
}

/* Every rank learns of a group whose first rank has no memory for its world, or no gate. */
static dsc_status prepare_groups(dsc_comm *parent, word *all, const group *mine, bool threads, int *gate,
                                 dsc_error *err)
{
    word *me = &all[parent->rank];
    dsc_error why = DSC_ERROR_INIT;
    if (me->color >= 0 && mine->first == parent->rank && mine->size > 1)
        me->status = (int32_t)prepare_group(parent, me, mine, threads, gate, &why);
    DSC_TRY(tell(parent, all, err)); /* a world that some may have heard of and others not stays */
    for (int32_t r = 0; r < parent->size; r++) {
        if (all[r].status == DSC_OK)
            continue;
        dsc_local_world_drop(world_of(all, mine));
        DSC_FAIL(err, (dsc_status)all[r].status, "comm", "rank %d could not open its group of ranks: %s", (int)r,
                 r == parent->rank ? why.message : dsc_status_text((dsc_status)all[r].status));
        if (err != NULL)
            err->rank = r;
        return (dsc_status)all[r].status;
    }
    return DSC_OK;
}

/* Address of the group's rendezvous over a network. A link-local address uses this host's interface. */
static void find_gate(dsc_comm *parent, const dsc_net_address *gate, dsc_rank_info *info)
{
    dsc_net_address at = *gate, own;
    char text[DSC_NET_TEXT];
    if (parent->transport->ops->address(parent->transport, &own))
        at.scope = own.scope;
    dsc_net_host_text(&at, text);
    snprintf(info->master_addr, sizeof info->master_addr, "%s", text);
    info->master_port = gate->port;
}

static dsc_status open_group(dsc_comm *parent, const word *all, const group *mine, dsc_comm_options *options,
                             dsc_comm **out, dsc_error *err)
{
    char name[DSC_COMM_GROUP_NAME];
    dsc_local_world *world = world_of(all, mine);
    dsc_status status = name_group(parent, &options->rank_info, all[parent->rank].color, name, err);
    if (status == DSC_OK) {
        dsc_rank_info *info = &options->rank_info;
        info->rank = mine->rank;
        info->size = mine->size;
        info->local_rank = mine->local_rank;
        info->local_size = mine->local_size;
        info->node = mine->node;
        info->node_count = mine->node_count;
        info->hosts_guessed = false;              /* everybody counted the same words */
        info->rank_name = info->size_name = NULL; /* the numbers are the group's */
        if (mine->node_count > 1)
            find_gate(parent, &all[mine->first].gate, info);
        info->job_token = name;
        info->local_world = world;
        status = dsc_comm_open(options, out, err);
    }
    if (status != DSC_OK) {
        dsc_local_world_drop(world);
        return status;
    }
    (*out)->group_world = world;
    memcpy((*out)->group_name, name, sizeof name);
    options->rank_info.job_token = (*out)->group_name;
    return DSC_OK;
}

dsc_status dsc_comm_split(dsc_comm *parent, int32_t color, int32_t key, dsc_comm_options *options, dsc_comm **out,
                          dsc_error *err)
{
    *out = NULL;
    DSC_ASSERT(parent->device == NULL);
    DSC_ASSERT(options->device == NULL);
    word *all = NULL;
    group mine;
    int gate = -1;
    dsc_error why = DSC_ERROR_INIT;
    dsc_status status = dsc_alloc_zeroed(parent->alloc, DSC_TAG_CONTROL, parent->size, sizeof *all, &all, &why);
    if (status != DSC_OK) { /* the others wait for this rank's word */
        dsc_comm_abort(parent, why.message);
        if (err != NULL)
            *err = why;
        return status;
    }
    parent->split_count++;
    all[parent->rank] = (word) { .color = color, .key = key, .node = options->rank_info.node };
    status = tell(parent, all, err);
    if (status == DSC_OK)
        status = check_group(parent, all, err);
    if (status == DSC_OK) {
        find_group(all, parent->size, parent->rank, &mine);
        status = prepare_groups(parent, all, &mine, options->rank_info.local_world != NULL, &gate, err);
    }
    options->gate = gate >= 0 ? &gate : NULL;
    if (status == DSC_OK && color >= 0)
        status = open_group(parent, all, &mine, options, out, err);
    options->gate = NULL;
    if (gate >= 0)
        close(gate);
    dsc_alloc_free(parent->alloc, all);
    return status;
}
