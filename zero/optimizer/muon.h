/* muon.h - directions of whole matrices, orthogonalised by one owner each. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_MUON_H
#define DSC_ZERO_OPTIMIZER_MUON_H

#include "zero/core/pass.h"

typedef struct dsc_muon {
    dsc_round *round;
    int32_t round_count;
    int32_t *owner; /* [tensor_count] rank that orthogonalises the matrix */
    int64_t *sent;  /* [W] elements of this round for or from a rank that a loop has passed */
    int64_t *at;    /* [group_count] offset of a group among the directions of its round */
    int64_t direction_elements, chunk, work_elements, host_elements; /* sizes of the largest round, matrix and tile */
    int64_t wire_bytes;                                              /* that an update receives from other ranks */
    dsc_buf direction_buf;      /* [local_count] of each group of a round: before and after */
    dsc_buf send_buf, recv_buf; /* [W][chunk] */
    dsc_buf work_buf;           /* the matrix twice, and two squares of its smaller side */
    dsc_buf sum_buf, norm_buf;  /* its sum of squares, on the device and for the host */
    dsc_buf host_buf;           /* directions of a tile that the host updates */
} dsc_muon;

extern const dsc_zero_pass_ops dsc_muon_pass;

#endif
