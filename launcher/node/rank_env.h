/* rank_env.h - the variables that tell a rank its place. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_NODE_RANK_ENV_H
#define DSC_LAUNCHER_NODE_RANK_ENV_H

#include "launcher/protocol/host_task.h"

typedef struct dsc_rank_var {
    const char *name; /* static */
    size_t value_at;  /* in text[] */
} dsc_rank_var;

typedef struct dsc_rank_vars {
    dsc_rank_var var[24];
    int32_t count;
    size_t text_bytes;
    char text[DSC_DEVICES_BYTES + 4096];
} dsc_rank_vars;

static inline const char *dsc_rank_var_value(const dsc_rank_vars *vars, int32_t i)
{
    return vars->text + vars->var[i].value_at;
}

/* Variables that every rank of the job gets and that may be shown: no token, nothing of one rank or one process. */
void dsc_rank_vars_common(const dsc_launcher_plan *plan, dsc_rank_vars *out);

/* Everything for rank number `index` of a host. world_fd: its end of the world channel; -1: none. */
void dsc_rank_vars_fill(const dsc_host_task *task, int32_t index, int world_fd, dsc_rank_vars *out);

/* `base` (an environ) with `vars` set and leftovers of another launch removed; one block, freed with dsc_alloc_free. */
DSC_MUST_USE dsc_status dsc_rank_environ(dsc_alloc *alloc, char *const *base, const dsc_rank_vars *vars, char ***out,
                                         dsc_error *err);

#endif
