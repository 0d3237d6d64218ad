/* places.h - places of the tokens other than padding, as RoBERTa numbers them: its position of a token.
 * reference, the only variant: cpu/places.c   check: tests/checkkern/places.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_PLACES_H
#define DSC_KERNELS_PLACES_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* A token of padding has place `padding`. Another one has `padding` plus the number of its sample's tokens up to it,
 * itself among them, without those of padding. */
typedef struct dsc_places_args {
    int32_t *places;         /* [batch, sequence] written */
    const int32_t *tokens;   /* [batch, sequence] */
    int64_t batch, sequence; /* sequence < 2^30 */
    int32_t padding;         /* >= 0 */
} dsc_places_args;

#ifdef __cplusplus
}
#endif
#endif
