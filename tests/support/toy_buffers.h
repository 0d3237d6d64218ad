/* toy_buffers.h - the toy model with buffers: statistics are functions of samples alone, so values are known after any
 * number of steps. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_TOY_BUFFERS_H
#define DSC_TESTS_TOY_BUFFERS_H

#include <dsc/dsc.h>

enum { TOY_BUFFERS_FEATURES = 5, TOY_BUFFERS_WIDE = 70, TOY_BUFFERS_MICRO = 2, TOY_BUFFERS_BATCH = 16 };

/* Two blocks, each with "block.N.mean" [5], "block.N.wide" [70], "block.N.steps" and "block.N.kept" [3]. The latter
 * stays, because it is frozen or its momentum is 0. The loss module has "loss.mean" [5]. Static storage: one at a time.
 */
dsc_model *toy_buffers_open(void);
void toy_buffers_close(void);
dsc_data_source toy_buffers_data(void);

/* Makes one statistic of the micro-batch that begins with this sample NaN; -1: none. */
void toy_buffers_spoil(int64_t sample);
/* Forwards that were given a place for statistics, of all ranks, since the last call; and the first value of
 * "block.0.mean" that the last evaluation saw. */
int64_t toy_buffers_statistics(void);
float toy_buffers_seen(void);

/* Expected value of a buffer after so many steps of TOY_BUFFERS_BATCH samples; `out` as dsc_probe_buffer's. Returns its
 * bytes. */
int64_t toy_buffers_expected(const char *name, int64_t steps, void *out);
/* A body of a rank: each buffer's value is the expected one, bit by bit; user: an int64_t, the number of steps. */
dsc_status toy_buffers_expect(dsc_engine *engine, int32_t rank, void *user, dsc_error *err);

#endif
