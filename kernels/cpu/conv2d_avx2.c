/* conv2d_avx2.c - conv2d_range.h for AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

#define CONV2D_ISA avx2
#include "kernels/cpu/conv2d_range.h"
