/* rng_avx512.c - dsc_rng_normal in this instruction set's vectors. SPDX-License-Identifier: Apache-2.0 */
#include "base/rng_fill.h"

DSC_RNG_DEFINE_FILL(dsc_rng_fill_avx512)
