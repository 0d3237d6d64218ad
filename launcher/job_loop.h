/* job_loop.h - the loop of a job: signals, output, hang detection, waiting and restarts. coordinator/coordinator.c adds
 * the operations that run the ranks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_JOB_LOOP_H
#define DSC_LAUNCHER_JOB_LOOP_H

#include "launcher/coordinator/exports.h"
#include "launcher/job.h"
#include "launcher/node/output.h"
#include "launcher/node/signals.h"
#include "launcher/node/verdict.h"
#include "launcher/node/watch.h"
#include "launcher/report.h"

/* The operations that run the ranks; `user` is the loop's. All are set. */
typedef struct dsc_job_loop_ops {
    /* One run of the ranks, from their start until nothing of the run is left and its output is read. */
    void (*run)(void *user);
    bool (*may_restart)(const void *user);
    int64_t (*may_start_ns)(const void *user); /* time before which no restart may begin; 0: at once */
    /* Reports the outcome of the run and returns its exit code. `last`: no restart follows. */
    int (*finish)(void *user, bool last);
    /* Ends everything that outlives a run. */
    void (*leave)(void *user);
    /* Handles events until one came, at most until `at_ns`. */
    void (*poll_once)(void *user, int64_t at_ns);
    void (*event)(void *user, const dsc_loop_event *event, int64_t now_ns);
    /* SIGINT, SIGTERM, ... from the user. True: the signal begins the end of the ranks. */
    bool (*end_by_user)(void *user, int signal_number, int64_t now_ns);
    void (*pass_signal)(void *user, int signal_number); /* to all ranks */
    void (*give_up)(void *user);                        /* the guardian is dead or stopped */
    /* The user's signal that ended the wait for a restart, or 0. */
    int (*late_signal)(const void *user);
    /* Sink `which` is full, or is not any more. */
    void (*pause)(void *user, int which, bool paused);
    void (*stop_reading)(void *user, int which);       /* the reader of sink `which` is gone; repeated */
    /* Brings watch.view up to date. False: the views are too old to judge. */
    bool (*update_views)(void *user, int64_t now_ns);
    void (*found)(void *user, int code); /* the hang finder: the run ends with `code` */
} dsc_job_loop_ops;

typedef struct dsc_job_loop {
    const dsc_job *job;
    const dsc_job_loop_ops *ops;
    void *user;
    const dsc_verdict *verdict; /* the worker's, for the current run */
    dsc_output *out;
    dsc_exports exports;
    dsc_signals signals;
    dsc_watch watch;
    dsc_rank_end *end; /* [rank_count] of the run */
    int32_t rank_count;
    int epoll_fd;
    int32_t restart_count;
    int64_t look_at_ns;  /* time of the next look at the ranks' collectives */
    bool abandon_output; /* the user does not wait for a stalled reader or for a restart */
} dsc_job_loop;

/* `loop` has job, ops, user, verdict and exports set. The lifeline is closed by dsc_job_loop_close, which is safe after
 * a failure and on a loop that was only initialised with DSC_JOB_LOOP_INIT. */
#define DSC_JOB_LOOP_INIT(lifeline) { .signals = { .signal_fd = -1, .lifeline_fd = (lifeline) }, .epoll_fd = -1 }
DSC_MUST_USE dsc_status dsc_job_loop_open(dsc_job_loop *loop, const dsc_output_options *output, dsc_error *err);
void dsc_job_loop_close(dsc_job_loop *loop);

/* All runs of the job; returns its exit code. */
int dsc_job_loop_run(dsc_job_loop *loop);

/* Forgets the ends and views of the run before. */
void dsc_job_loop_begin_run(dsc_job_loop *loop);
/* Waits for the next events, at most until `at_ns`, and handles them. */
void dsc_job_loop_wait(dsc_job_loop *loop, int64_t at_ns);
void dsc_job_loop_tend_output(dsc_job_loop *loop);
void dsc_job_loop_look_for_hangs(dsc_job_loop *loop, int64_t now_ns);
/* Neither the guardian's end nor the user ends the wait for output or for a restart. */
static inline bool dsc_job_loop_waits(const dsc_job_loop *loop)
{
    return !loop->signals.orphaned && !loop->abandon_output;
}

/* True when the verdict of the run allows a restart. */
bool dsc_job_loop_verdict_restarts(const dsc_job_loop *loop);
/* Reports the verdict of a run in which every host took part to its end; returns the exit code. */
int dsc_job_loop_report(const dsc_job_loop *loop, const dsc_report *report);
/* The guardian is dead or stopped: reports it and returns the exit code. */
int dsc_job_loop_report_orphaned(const dsc_job_loop *loop);
/* A worker could not be opened: prints the error and returns the exit code. */
int dsc_job_print_error(const dsc_error *err);

#endif
