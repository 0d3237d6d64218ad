/* host_task.h - the task of one host: its ranks of a job, and their settings. The launcher makes the task from the
 * plan; an agent reads it from the launcher's message. Everything that starts ranks reads the task and nothing else.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PROTOCOL_HOST_TASK_H
#define DSC_LAUNCHER_PROTOCOL_HOST_TASK_H

#include <sys/types.h>

#include "launcher/plan/resources.h"

enum { DSC_JOB_TOKEN_CHARS = 32 }; /* 128 random bits in hexadecimal */

typedef struct dsc_host_task {
    int32_t world_size;
    int32_t host, host_count;       /* number of this host among those of the job */
    int32_t first_rank, rank_count; /* ranks of a host follow each other */
    int32_t master_port;
    int32_t tty_columns;            /* columns of the terminal at rank 0's stdout; 0: no terminal */
    int32_t thread_count;           /* per rank, unless OMP_NUM_THREADS is set; 0: not known */
    int32_t restart_count;          /* how often this job was started again */
    int32_t restart_limit;
    bool bind_cores;                /* the ranks divide `cores` */
    bool one_stream;                /* stdout and stderr of the job end in the same place */
    bool rank0_only;                /* the others' output ends in a log each */
    int32_t late_ms, disk_ms;       /* --chaos (plan/chaos.h); 0: none */
    int32_t least_ranks;            /* ranks leave and join: each is started by a command, and has a world channel */
    int32_t most_ranks;             /* of the job; 0 and 0: its ranks are fixed */
    cpu_set_t cores;
    const struct dsc_flight_log *flight; /* this host's ranks write to it; NULL: none */
    pid_t launcher_pid;             /* on this host: the process whose death ends the ranks */
    char job_token[DSC_JOB_TOKEN_CHARS + 1];
    const char *master_addr;
    const char *devices;            /* CUDA_VISIBLE_DEVICES; NULL: as it is in env */
    const char *core_list;          /* --bind_core_list, or "": all */
    const char *folder;             /* working folder of the ranks; "": this process's */
    const char *program;            /* file to execute; an agent looks for argv[0] itself */
    char **argv;                    /* NULL-terminated */
    char **env;                     /* the ranks' environment without their own variables, NULL-terminated */
    char **exports;                 /* NAME=VALUE to put into env on the host, NULL-terminated; or NULL */
    void *owned;                    /* memory of the texts when they came in a message, else NULL */
} dsc_host_task;

/* Numbers and devices of host number `host` of a plan; everything else is the caller's. `devices` goes to text[]. */
enum { DSC_DEVICES_BYTES = 12 * DSC_HOST_SLOTS_MAX };
void dsc_host_task_of_plan(const dsc_launcher_plan *plan, int32_t host, char text[DSC_DEVICES_BYTES],
                           dsc_host_task *out);

void dsc_host_task_close(dsc_alloc *alloc, dsc_host_task *task); /* frees what is owned; safe on a zeroed one */

/* A new token for each start: two jobs on a host, or two starts of one job, never meet. */
DSC_MUST_USE dsc_status dsc_job_token_new(char out[DSC_JOB_TOKEN_CHARS + 1], dsc_error *err);
/* For a job that several launchers start: DSC_JOB_TOKEN as the user gave it to each, or "" (the port names the job). */
DSC_MUST_USE dsc_status dsc_job_token_given(char out[DSC_JOB_TOKEN_CHARS + 1], dsc_error *err);
bool dsc_job_token_is_one(const char *text);
int32_t dsc_plan_first_rank(const dsc_launcher_plan *plan, int32_t host);

#endif
