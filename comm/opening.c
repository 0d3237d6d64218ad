/* opening.c - messages about ranks that do not come to an open: the missing ranks, the variables that made this job,
 * and the remedy. A shell in which such variables are left over starts one rank of several, and no other comes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/comm_internal.h"

void dsc_comm_log_wait(const dsc_comm_options *options, const char *text)
{
    const dsc_rank_info *info = &options->rank_info;
    if (info->size_name == NULL)
        dsc_log_printf(options->log, DSC_LOG_WARNING, "%s", text);
    else
        dsc_log_printf(options->log, DSC_LOG_WARNING,
                       "%s; the environment has %s=%d and %s=%d; to run alone, end this and unset both", text,
                       info->rank_name, info->rank, info->size_name, info->size);
}

void dsc_comm_add_origin(const dsc_rank_info *info, dsc_error *err)
{
    char text[sizeof err->message];
    if (err == NULL || info->size_name == NULL || info->size == 1)
        return;
    const int length = snprintf(text, sizeof text,
                                "%s; the environment has %s=%d and %s=%d: start the other ranks too (dsc-launch and "
                                "torchrun do), or unset both to run alone",
                                err->message, info->rank_name, info->rank, info->size_name, info->size);
    if (length > 0 && (size_t)length < sizeof text)
        memcpy(err->message, text, (size_t)length + 1);
}

/* ---- the watch --------------------------------------------------------------------------------------------------- */

static void log_others(const dsc_comm_options *options)
{
    char text[128];
    const dsc_rank_info *info = &options->rank_info;
    if (info->size == 2)
        snprintf(text, sizeof text, "rank %d waits for rank %d of 2 to come", info->rank, 1 - info->rank);
    else
        snprintf(text, sizeof text, "rank %d waits for some of the other %d ranks to come", info->rank, info->size - 1);
    dsc_comm_log_wait(options, text);
}

static void *watch_open(void *user)
{
    dsc_comm_open_watch *watch = user;
    const int64_t wait_ns = dsc_min_i64(DSC_COMM_NOTICE_NS, dsc_comm_open_timeout_ns(watch->options) / 2);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + wait_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&watch->lock);
    int rc = 0;
    while (!watch->over && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&watch->changed, &watch->lock, &until);
    if (!watch->over) /* under the lock: the opening thread logs nothing at the same time */
        log_others(watch->options);
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

void dsc_comm_open_watch_open(dsc_comm_open_watch *watch, const dsc_comm_options *options)
{
    pthread_condattr_t attr;
    *watch = (dsc_comm_open_watch){ .options = options };
    if (options->rank_info.size == 1)
        return;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &attr);
    pthread_condattr_destroy(&attr);
    watch->runs = pthread_create(&watch->thread, NULL, watch_open, watch) == 0;
}

void dsc_comm_open_watch_close(dsc_comm_open_watch *watch)
{
    if (watch->options->rank_info.size == 1)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->over = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    if (watch->runs)
        pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
}
