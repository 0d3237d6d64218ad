/* rank_info.c - identity of this rank, from the environment that a launcher left.
 *
 * There are four families of variables: the plain ones (dsc-launch, DeepSpeed, torchrun), Open MPI's, those of MPICH's
 * hydra, and Slurm's. Slurm's count in a step that srun started; a batch script alone is one process. The plain ones
 * win. If two families are set, they must agree, because a RANK that somebody exported by hand would otherwise start a
 * second rank 0. Families fill in values that the first one lacks: Slurm with PMI gives ranks both ways.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hosts/rank_names.h"
#include "base/hosts/slurm.h"
#include "comm/comm.h"

typedef struct env {
    const char *(*get)(void *user, const char *name);
    void *user;
} env;

typedef dsc_rank_names family;
static const family *const families = dsc_rank_family_names;

static const char *text_of(const env *e, const char *name)
{
    const char *text = name != NULL ? e->get(e->user, name) : NULL;
    return text != NULL && text[0] != 0 ? text : NULL;
}

/* *value stays when the variable is not set. */
static dsc_status number(const env *e, const char *name, int64_t least, int64_t most, int64_t *value, dsc_error *err)
{
    const char *text = text_of(e, name);
    if (text == NULL)
        return DSC_OK;
    int64_t n = 0;
    const size_t digits = strspn(text, "0123456789");
    const bool plain = digits > 0 && digits <= 9 && text[digits] == 0;
    for (size_t i = 0; plain && i < digits; i++)
        n = n * 10 + (text[i] - '0');
    if (!plain || n < least || n > most)
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "\"%.40s\" is %s; expected %lld to %lld", text,
                        digits == 0 || text[digits] != 0 ? "not a whole number of digits alone"
                        : plain && n < least             ? "too small"
                                                         : "too large",
                        (long long)least, (long long)most);
    *value = n;
    return DSC_OK;
}

typedef struct numbers {
    int64_t rank, size, local_rank, local_size, node, node_count; /* -1: not set */
    bool hosts_guessed;
} numbers;

/* Slurm names the numbers of tasks of all nodes in one list. */
static dsc_status read_slurm_local_size(const env *e, const family *f, numbers *n, dsc_error *err)
{
    const char *list = text_of(e, f->local_size);
    if (list == NULL || n->node < 0)
        return DSC_OK;
    n->local_size = dsc_slurm_tasks(list, (int32_t)n->node);
    if (n->local_size > 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, f->local_size, "\"%.60s\" has no number for node %lld", list,
                    (long long)n->node);
}

static dsc_status read_family(const env *e, const family *f, numbers *out, dsc_error *err)
{
    *out = (numbers){ -1, -1, -1, -1, -1, -1, false };
    int64_t alias = -1;
    DSC_TRY(number(e, f->rank, 0, INT32_MAX, &out->rank, err));
    DSC_TRY(number(e, f->size, 1, INT32_MAX, &out->size, err));
    DSC_TRY(number(e, f->local_rank, 0, INT32_MAX, &out->local_rank, err));
    DSC_TRY(number(e, f->node, 0, INT32_MAX, &out->node, err));
    DSC_TRY(number(e, f->node_count, 1, INT32_MAX, &out->node_count, err));
    if (out->node < 0 || out->node_count < 0) {
        DSC_TRY(number(e, f->node_alias, 0, INT32_MAX, &out->node, err));
        DSC_TRY(number(e, f->node_count_alias, 1, INT32_MAX, &out->node_count, err));
    }
    if (f == &families[DSC_RANK_SLURM])
        return read_slurm_local_size(e, f, out, err);
    DSC_TRY(number(e, f->local_size, 1, INT32_MAX, &out->local_size, err));
    DSC_TRY(number(e, f->local_size_alias, 1, INT32_MAX, &alias, err));
    if (alias >= 0 && out->local_size >= 0 && alias != out->local_size)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_size, "%lld, but %s is %lld", (long long)out->local_size,
                        f->local_size_alias, (long long)alias);
    if (out->local_size < 0)
        out->local_size = alias;
    return DSC_OK;
}

/* A family speaks when it says both who and of how many. */
static dsc_status family_speaks(const family *f, const numbers *n, bool *speaks, dsc_error *err)
{
    *speaks = n->rank >= 0 && n->size >= 0;
    if (f != &families[DSC_RANK_PLAIN] || (n->rank >= 0) == (n->size >= 0))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, n->rank >= 0 ? f->size : f->rank,
                    "not set, but %s is; a rank needs both, and a run alone needs neither",
                    n->rank >= 0 ? f->rank : f->size);
}

/* Values about this host that the chosen family lacks may come from another family that agrees. */
static void fill_from(const numbers *other, numbers *n)
{
    if (n->local_rank < 0)
        n->local_rank = other->local_rank;
    if (n->local_size < 0)
        n->local_size = other->local_size;
    if (n->node < 0 || n->node_count < 0) {
        n->node = other->node;
        n->node_count = other->node_count;
    }
}

static dsc_status choose_family(const env *e, numbers *out, const family **chosen, dsc_error *err)
{
    *chosen = NULL;
    for (size_t i = 0; i < DSC_RANK_FAMILIES; i++) {
        numbers n;
        bool speaks = false;
        DSC_TRY(read_family(e, &families[i], &n, err));
        DSC_TRY(family_speaks(&families[i], &n, &speaks, err));
        if (!speaks)
            continue;
        if (*chosen == NULL) {
            *chosen = &families[i];
            *out = n;
        } else if (n.size > 1 && (n.rank != out->rank || n.size != out->size)) {
            return DSC_FAIL(err, DSC_ERR_INPUT, (*chosen)->rank,
                            "rank %lld of %lld, but %s and %s say %lld of %lld; unset one of them",
                            (long long)out->rank, (long long)out->size, families[i].rank, families[i].size,
                            (long long)n.rank, (long long)n.size);
        } else if (n.size == out->size) {
            fill_from(&n, out);
        }
    }
    return DSC_OK;
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

/* Without local numbers all ranks are here when the master is this host by name and no other is known of; else nobody
 * can know. */
static dsc_status fill_local(const family *f, numbers *n, const char *master_addr, dsc_error *err)
{
    if (n->size == 1 || (is_loopback(master_addr) && n->node_count <= 1)) {
        if (n->local_rank < 0)
            n->local_rank = n->local_size < 0 || n->local_size == n->size ? n->rank : -1;
        if (n->local_size < 0)
            n->local_size = n->size;
    }
    if (n->local_rank < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_rank,
                        "not set; several hosts need the rank's number on its own "
                        "host; to run alone, unset %s and %s",
                        f->rank, f->size);
    if (n->local_size < 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_size,
                        "not set; several hosts need the number of ranks on this "
                        "one; to run alone, unset %s and %s",
                        f->rank, f->size);
    if (n->node < 0 || n->node_count < 0) { /* right where hosts have as many ranks each */
        n->node = (n->rank - n->local_rank) / n->local_size;
        n->node_count = dsc_div_ceil(n->size, n->local_size);
        n->hosts_guessed = n->local_size < n->size;
    }
    return DSC_OK;
}

static dsc_status check(const family *f, const numbers *n, dsc_error *err)
{
    if (n->rank >= n->size)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->rank, "%lld, but %s is %lld: ranks count from 0", (long long)n->rank,
                        f->size, (long long)n->size);
    if (n->local_size > n->size)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_size, "%lld ranks on this host, but %s is %lld",
                        (long long)n->local_size, f->size, (long long)n->size);
    if (n->local_rank >= n->local_size)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_rank, "%lld, but %lld ranks are on this host",
                        (long long)n->local_rank, (long long)n->local_size);
    if (n->local_size == n->size && n->local_rank != n->rank)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->local_rank, "%lld, but %s is %lld and all ranks are on this host",
                        (long long)n->local_rank, f->rank, (long long)n->rank);
    if (n->node >= n->node_count)
        return DSC_FAIL(err, DSC_ERR_INPUT, f->node != NULL ? f->node : f->rank,
                        "host %lld of %lld: hosts count from 0", (long long)n->node, (long long)n->node_count);
    return DSC_OK;
}

static dsc_status keep_first(void *user, const char *name, dsc_error *err)
{
    char *master_addr = user;
    if (master_addr[0] == 0)
        memcpy(master_addr, name, strlen(name) + 1);
    return DSC_OK;
}

/* Address of rank 0: from the plain variables, or from Slurm's own in a step without them. */
static dsc_status read_master(const env *e, dsc_rank_info *out, dsc_error *err)
{
    const char *addr = text_of(e, "MASTER_ADDR"), *nodes = text_of(e, "SLURM_STEP_NODELIST");
    const char *job = text_of(e, "SLURM_JOB_ID");
    const bool step = text_of(e, families[DSC_RANK_SLURM].size) != NULL;
    int64_t port = step && job != NULL ? dsc_slurm_port(job) : 29500, node_count = 1;
    DSC_TRY(number(e, "MASTER_PORT", 1, 65535, &port, err));
    out->master_port = (int32_t)port;
    out->master_addr[0] = 0;
    if (addr != NULL && strlen(addr) >= sizeof out->master_addr)
        return DSC_FAIL(err, DSC_ERR_INPUT, "MASTER_ADDR", "\"%.40s...\" is not a host name", addr);
    DSC_TRY(number(e, families[DSC_RANK_SLURM].node_count, 1, INT32_MAX, &node_count, err));
    if (addr == NULL && step && nodes != NULL && node_count > 1)
        return dsc_slurm_hosts("SLURM_STEP_NODELIST", nodes, keep_first, out->master_addr, err);
    snprintf(out->master_addr, sizeof out->master_addr, "%s", addr != NULL ? addr : "127.0.0.1");
    return DSC_OK;
}

dsc_status dsc_rank_info_from_env(const char *(*get)(void *user, const char *name), void *user, dsc_rank_info *out,
                                  dsc_error *err)
{
    const env e = { get, user };
    const family *f = NULL;
    numbers n = { 0, 1, 0, 1, 0, 1, false };
    const char *token = text_of(&e, "DSC_JOB_TOKEN");
    *out = (dsc_rank_info) { .job_token = token != NULL ? token : "" };
    DSC_TRY(choose_family(&e, &n, &f, err));
    DSC_TRY(read_master(&e, out, err));
    if (f != NULL) {
        DSC_TRY(fill_local(f, &n, out->master_addr, err));
        DSC_TRY(check(f, &n, err));
    }
    out->rank = (int32_t)n.rank;
    out->size = (int32_t)n.size;
    out->local_rank = (int32_t)n.local_rank;
    out->local_size = (int32_t)n.local_size;
    out->node = (int32_t)n.node;
    out->node_count = (int32_t)n.node_count;
    out->hosts_guessed = n.hosts_guessed;
    out->from_mpi = f == &families[DSC_RANK_OPEN_MPI];
    out->flight = text_of(&e, "DSC_FLIGHT");
    if (f != NULL && text_of(&e, "DSC_LAUNCHER_PID") == NULL) {
        out->rank_name = f->rank;
        out->size_name = f->size;
    }
    return DSC_OK;
}
