/* attention_avx512.c - attention on 16 lanes of fp32; 16-bit tensors are widened when they are packed.
 * SPDX-License-Identifier: Apache-2.0 */
#define ATT_PAIR 1
#include "kernels/cpu/attention_avx512.h"

#include "kernels/cpu/attention_tile.h"

const dsc_attention_ops dsc_attention_avx512 = { forward, backward };
