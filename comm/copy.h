/* copy.h - copies between buffers that do not overlap. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_COMM_COPY_H
#define DSC_COMM_COPY_H

#include "base/base.h"

/* From this many received bytes on a collective writes past the cache. The data would not fit there, and a plain
 * store reads each line before it writes the line. Half of a common last-level cache of 32 MiB. */
#define DSC_COPY_PAST_CACHE_BYTES (INT64_C(16) << 20)

/* to == from is a copy already done. */
void dsc_copy_bytes(void *to, const void *from, int64_t bytes, bool past_cache);

#endif
