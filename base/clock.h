/* clock.h - time as numbers. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_CLOCK_H
#define DSC_BASE_CLOCK_H
#include "base/base.h"
#ifdef __cplusplus
extern "C" {
#endif
int64_t dsc_clock_ns(void);      /* CLOCK_MONOTONIC */
int64_t dsc_clock_wall_ns(void); /* CLOCK_REALTIME */
void dsc_clock_sleep_ns(int64_t ns);
#ifdef __cplusplus
}
#endif
#endif
