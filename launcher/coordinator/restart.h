/* restart.h - whether and when a job that failed starts again (--max_restarts). SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_COORDINATOR_RESTART_H
#define DSC_LAUNCHER_COORDINATOR_RESTART_H

#include "launcher/protocol/verdict.h"

/* Bad input and a plan that does not fit would only fail again. */
static inline bool dsc_restart_allowed(const dsc_rank_end *culprit, int32_t restart_count, int32_t restart_limit)
{
    const bool hopeless = culprit->exec_errno != 0 || culprit->code == dsc_status_exit_code(DSC_ERR_INPUT) ||
                          culprit->code == dsc_status_exit_code(DSC_ERR_NOFIT);
    return restart_count < restart_limit && !hopeless;
}

/* 1, 2, 4, ... at most 32 seconds. */
static inline int64_t dsc_restart_wait_ns(int32_t restart_count)
{
    return INT64_C(1000000000) << (restart_count < 5 ? restart_count : 5);
}

#endif
