/* fp8_gather.h - stage 3: weights of products in fp8 arrive in their windows as E4M3 numbers (kernels/fp8.h).
 *
 * Each owner casts its slice, and slices are gathered: half the bytes of bf16, on the wire and in windows. A matrix has
 * one scale, from the largest number of all slices. Ranks exchange that number at the first gather after an update. It
 * is exact, so the numbers do not depend on the world size, and are those that a rank would cast from the whole matrix.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_FP8_GATHER_H
#define DSC_ZERO_FP8_GATHER_H

#include "zero/core/internal.h"

void dsc_fp8_gather_plan(dsc_zero *zero);
DSC_MUST_USE dsc_status dsc_fp8_gather_open(dsc_zero *zero, dsc_error *err);
void dsc_fp8_gather_close(dsc_zero *zero);
/* On the gather stream: the window <- numbers of all slices. `mine`: this rank's slice of parameters. */
DSC_MUST_USE dsc_status dsc_fp8_gather(dsc_zero *zero, int32_t group, char *window, const char *mine, dsc_error *err);
/* The parameters change, and with `frozen` those that are not trained too. */
void dsc_fp8_gather_forget(dsc_zero *zero, bool frozen);
/* Bytes of each rank that an exchange of largest numbers moves. */
int64_t dsc_fp8_gather_tops_bytes(const dsc_zero *zero, int32_t group);

#endif
