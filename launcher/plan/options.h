/* options.h - the command line of dsc-launch: DeepSpeed's runner flags, horovodrun's -np and -H, and our own.
 *
 * One table (options.c, read by base/flags.h) names every flag, also those that this version refuses.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_OPTIONS_H
#define DSC_LAUNCHER_PLAN_OPTIONS_H

#include <stdio.h>

#include "base/base.h"
#include "base/flags.h"
#include "launcher/plan/chaos.h"

typedef enum dsc_launcher_action { DSC_LAUNCHER_RUN, DSC_LAUNCHER_HELP, DSC_LAUNCHER_VERSION } dsc_launcher_action;

/* Quieter than the level: not printed. Errors always are. */
typedef enum dsc_launcher_level {
    DSC_LAUNCHER_ERROR,
    DSC_LAUNCHER_WARNING,
    DSC_LAUNCHER_INFO,
    DSC_LAUNCHER_DEBUG
} dsc_launcher_level;

/* The most values of a flag that may be given several times. */
enum { DSC_LAUNCHER_LIST_MAX = 256 };

/* Texts are borrowed from argv. Numbers are -1, texts NULL when the flag was not given. Not to be copied, because the
 * lists point into it. */
typedef struct dsc_launcher_options {
    dsc_launcher_action action;
    const char *hosts;    /* -H: a list or a file, decided by dsc_launcher_resolve */
    const char *hostfile; /* --hostfile */
    const char *include;
    const char *exclude;
    int32_t node_count;     /* --num_nodes */
    int32_t slots_per_node; /* --num_gpus */
    int32_t rank_count;     /* -np */
    int32_t node_rank;
    int32_t master_port;           /* 0: not given */
    const char *comm;              /* --comm NAME */
    const char *master_addr;
    const char *core_list;
    const char *rank_log_dir;
    int32_t grace_s;
    int32_t stuck_s;        /* --stuck_seconds; 0: what the ranks say themselves */
    int32_t restart_limit;
    int32_t least_nodes;       /* --nnodes MIN:MAX; else 0 */
    int32_t least_ranks;       /* --min_np; 0: the ranks are fixed */
    int32_t most_ranks;        /* --max_np; 0: the ranks at the start */
    int32_t first_ranks;       /* ranks at the start, where --max_np says more; 0: all */
    int32_t elastic_timeout_s; /* --elastic_timeout; -1: not given */
    const char *discovery_script; /* --host_discovery_script */
    const char *chaos_text;
    dsc_chaos_spec chaos;      /* --chaos */
    int32_t reset_limit;       /* --reset_limit; -1: none */
    dsc_flag_list exports;     /* --export NAME[=VALUE], in order */
    dsc_flag_list ssh_options; /* --ssh_option NAME=VALUE */
    const char *export_texts[DSC_LAUNCHER_LIST_MAX], *ssh_option_texts[DSC_LAUNCHER_LIST_MAX];
    const char *ssh_port_text; /* NULL: what ssh itself chooses */
    const char *launcher;      /* --launcher NAME */
    const char *launcher_args; /* for that one */
    bool sbatch;
    bool force_multi;
    const char *log_level_text;
    dsc_launcher_level log_level;
    bool quiet;
    bool bind_cores;
    bool module;
    bool no_python;
    bool no_local_rank;
    bool no_ssh;
    bool no_ssh_check;
    bool standalone;
    bool oversubscribe;
    bool save_pid;
    bool dry_run;
    bool version;
    dsc_flag_program program; /* PROGRAM and its arguments; argc 0: none was given */
} dsc_launcher_options;

/* Flags end at the first argument that is not a flag, or after "--". *out must stay at its address. */
DSC_MUST_USE dsc_status dsc_launcher_options_parse(int argc, char **argv, dsc_launcher_options *out, dsc_error *err);
/* The page of --help. */
void dsc_launcher_usage(FILE *to);

#endif
