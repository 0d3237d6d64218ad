/* batch_norm_avx2.c - batch_norm_v16.h on AVX2. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/batch_norm_v16.h"
