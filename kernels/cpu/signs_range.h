/* signs_range.h - the kernels of signs.h on one thread over a range of elements: what a variant has to provide. Private
 * to kernels/signs*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_SIGNS_RANGE_H
#define DSC_KERNELS_CPU_SIGNS_RANGE_H

#include <string.h>

#include "base/base.h"
#include "kernels/signs.h"

/* Elements first..last-1 of the arguments' arrays; first is a multiple of 16. */
typedef struct dsc_signs_ops {
    void (*add)(const dsc_signs_add_args *a, int64_t first, int64_t last);
    void (*pack)(const dsc_signs_pack_args *a, int64_t first, int64_t last);
    void (*reduce)(const dsc_signs_reduce_args *a, int64_t first, int64_t last);
    void (*unpack)(const dsc_signs_unpack_args *a, int64_t first, int64_t last);
    void (*mask)(const dsc_signs_mask_args *a, int64_t first, int64_t last);
    void (*local_step)(const dsc_signs_local_step_args *a, int64_t first, int64_t last);
    void (*synchronize)(const dsc_signs_synchronize_args *a, int64_t first, int64_t last);
    void (*regain)(const dsc_signs_regain_args *a, int64_t first, int64_t last);
} dsc_signs_ops;

/* Bits of floats that are not negative are in the floats' order. Threads meet here, and a largest one has no order. */
static inline void dsc_sign_compress_raise(uint32_t *most, float value)
{
    uint32_t bits, seen = __atomic_load_n(most, __ATOMIC_RELAXED);
    memcpy(&bits, &value, sizeof bits);
    while (bits > seen &&
           !__atomic_compare_exchange_n(most, &seen, bits, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

extern const dsc_signs_ops dsc_signs_ref, dsc_signs_avx2, dsc_signs_avx512;

#endif
