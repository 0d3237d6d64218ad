/* embedding_sort.h - the rows of each token, as sort_tokens leaves them in the scratch of EMBEDDING_BWD.
 * Private to kernels/embedding*. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_EMBEDDING_SORT_H
#define DSC_KERNELS_CPU_EMBEDDING_SORT_H

#include "kernels/embedding.h"

/* Rows of token v, in increasing order: row[(v == 0 ? 0 : end[v - 1]) .. end[v] - 1]. */
typedef struct dsc_embedding_sort {
    int32_t *end; /* [vocab] */
    int32_t *row; /* [rows] */
} dsc_embedding_sort;

static inline dsc_embedding_sort dsc_embedding_sort_of(const dsc_embedding_bwd_args *a)
{
    int32_t *end = (int32_t *)a->scratch;
    return (dsc_embedding_sort) { end, end + a->vocab };
}

#endif
