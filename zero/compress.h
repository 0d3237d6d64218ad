/* compress.h - quantized transfers: parameters to windows, gradient parts to their owners.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_COMPRESS_H
#define DSC_ZERO_COMPRESS_H

#include "comm/comm.h"
#include "zero/zero.h"

struct dsc_grad_part;

void dsc_pack_plan(dsc_zero *zero); /* after gradient parts */
dsc_status dsc_pack_open(dsc_zero *zero, dsc_error *err);
void dsc_pack_close(dsc_zero *zero);
/* On the gather stream: fills the window from this rank's slice, which may lie in it, and from all other slices. */
dsc_status dsc_pack_gather(dsc_zero *zero, int32_t group, char *window, const char *mine, dsc_error *err);
/* On the reduce stream: a reduce_scatter of elements of that part, packed if the options say so. */
dsc_status dsc_pack_reduce(dsc_zero *zero, const struct dsc_grad_part *part, const dsc_reduce_scatter_args *args,
                           dsc_error *err);

#endif
