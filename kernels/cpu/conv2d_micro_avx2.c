/* conv2d_micro_avx2.c - conv2d_micro_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

#define MICRO_VECS 1
#define MICRO_ROWS(vecs) 6
#define MICRO_PAIRS 0
#define MICRO_NAME dsc_conv2d_micro_avx2
#include "kernels/cpu/conv2d_micro_v16.h"
