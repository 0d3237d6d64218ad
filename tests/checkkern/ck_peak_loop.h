/* ck_peak_loop.h - chains of one instruction in registers only, for its throughput. Private to ck_peak_*.c.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CHECKKERN_CK_PEAK_LOOP_H
#define DSC_TESTS_CHECKKERN_CK_PEAK_LOOP_H

#include <immintrin.h>

#include "tests/checkkern/ck.h"

enum { CK_CHAINS = 12 }; /* latency 4 to 6 times 2 units */

/* The empty assembly: the sum stays in its register, and equal chains do not become one. */
#define CK_CHAIN(i, step)    \
    sum##i = step(sum##i);   \
    __asm__ volatile("" : "+v"(sum##i))

/* `rounds` times sum = step(sum), for CK_CHAINS sums of type `vec` that start as `zero`. */
#define CK_PEAK_LOOP(vec, zero, rounds, step)                                                                        \
    do {                                                                                                             \
        vec sum0 = zero, sum1 = sum0, sum2 = sum0, sum3 = sum0, sum4 = sum0, sum5 = sum0, sum6 = sum0, sum7 = sum0,  \
            sum8 = sum0, sum9 = sum0, sum10 = sum0, sum11 = sum0;                                                    \
        for (int64_t round_ = 0; round_ < (rounds); round_++) {                                                      \
            CK_CHAIN(0, step);                                                                                       \
            CK_CHAIN(1, step);                                                                                       \
            CK_CHAIN(2, step);                                                                                       \
            CK_CHAIN(3, step);                                                                                       \
            CK_CHAIN(4, step);                                                                                       \
            CK_CHAIN(5, step);                                                                                       \
            CK_CHAIN(6, step);                                                                                       \
            CK_CHAIN(7, step);                                                                                       \
            CK_CHAIN(8, step);                                                                                       \
            CK_CHAIN(9, step);                                                                                       \
            CK_CHAIN(10, step);                                                                                      \
            CK_CHAIN(11, step);                                                                                      \
        }                                                                                                            \
    } while (0)

#endif
