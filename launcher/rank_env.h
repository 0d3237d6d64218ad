/* rank_env.h - the variables that tell a rank its place. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_RANK_ENV_H
#define DSC_LAUNCHER_RANK_ENV_H

#include <sys/types.h>

#include "launcher/resources.h"

typedef struct dsc_rank_var {
    const char *name; /* static */
    size_t value_at;  /* in text[] */
} dsc_rank_var;

typedef struct dsc_rank_vars {
    dsc_rank_var var[20];
    int32_t count;
    size_t text_bytes;
    char text[12 * 1024]; /* CUDA_VISIBLE_DEVICES of 1024 slots is 5 KB */
} dsc_rank_vars;

static inline const char *dsc_rank_var_value(const dsc_rank_vars *vars, int32_t i)
{
    return vars->text + vars->var[i].value_at;
}

/* What every rank of the job gets, and what may be shown: no token, nothing of one rank or one process. */
void dsc_rank_vars_common(const dsc_launcher_plan *plan, dsc_rank_vars *out);

typedef struct dsc_rank_secrets {
    char job_token[33];  /* 128 random bits in hexadecimal: names the job's rendezvous and proves membership */
    pid_t launcher_pid;
    int32_t tty_columns; /* for rank 0, whose own stdout is a pipe to a terminal of this width; 0: no terminal */
} dsc_rank_secrets;

/* Everything for one rank. */
void dsc_rank_vars_fill(const dsc_launcher_plan *plan, const dsc_place *place, const dsc_rank_secrets *secrets,
                        dsc_rank_vars *out);

/* `base` (an environ) with `vars` set and leftovers of another launch removed; one block, freed with dsc_alloc_free. */
DSC_MUST_USE dsc_status dsc_rank_environ(dsc_alloc *alloc, char *const *base, const dsc_rank_vars *vars, char ***out,
                                         dsc_error *err);

#endif
