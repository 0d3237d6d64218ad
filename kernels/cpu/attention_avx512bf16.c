/* attention_avx512bf16.c - attention of bf16 tensors with VDPBF16PS: two products and two additions a lane.
 * SPDX-License-Identifier: Apache-2.0 */
#define ATT_PAIR 2
#include "kernels/cpu/attention_avx512.h"

#include "kernels/cpu/attention_tile.h"

const dsc_attention_ops dsc_attention_avx512bf16 = { forward, backward };
