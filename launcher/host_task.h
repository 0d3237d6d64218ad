/* host_task.h - what one host has to do: which ranks of which job, and what they are told. Made from the plan;
 * everything that starts ranks reads this and nothing else. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_HOST_TASK_H
#define DSC_LAUNCHER_HOST_TASK_H

#include <sys/types.h>

#include "launcher/resources.h"

enum { DSC_JOB_TOKEN_CHARS = 32 }; /* 128 random bits in hexadecimal */

typedef struct dsc_host_task {
    int32_t world_size;
    int32_t host, host_count;       /* number of this host among those of the job */
    int32_t first_rank, rank_count; /* ranks of a host follow each other */
    int32_t master_port;
    int32_t tty_columns;            /* of the terminal that rank 0's stdout ends in; 0: none */
    int32_t thread_count;           /* of each rank, unless OMP_NUM_THREADS is set; 0: not known */
    int32_t restart_count;          /* how often this job was started again */
    int32_t restart_limit;
    bool bind_cores;                /* the ranks divide `cores` */
    cpu_set_t cores;
    pid_t launcher_pid;             /* on this host: the process whose death ends the ranks */
    char job_token[DSC_JOB_TOKEN_CHARS + 1];
    const char *master_addr;
    const char *devices;            /* CUDA_VISIBLE_DEVICES; NULL: as it is in env */
    const char *program;            /* file to execute */
    char **argv;                    /* NULL-terminated */
    char **env;                     /* the ranks' environment without their own variables, NULL-terminated */
} dsc_host_task;

/* Numbers and devices of host number `host` of a plan; everything else is the caller's. `devices` goes to text[]. */
enum { DSC_DEVICES_BYTES = 12 * DSC_HOST_SLOTS_MAX };
void dsc_host_task_of_plan(const dsc_launcher_plan *plan, int32_t host, char text[DSC_DEVICES_BYTES],
                           dsc_host_task *out);

/* A new token for each start: two jobs on a host, or two starts of one job, never meet. */
DSC_MUST_USE dsc_status dsc_job_token_new(char out[DSC_JOB_TOKEN_CHARS + 1], dsc_error *err);

#endif
