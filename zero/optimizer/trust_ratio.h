/* trust_ratio.h - the step of a whole tensor by the norms of its weights and of its direction (LAMB, LARS,
 * Adafactor).  * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ZERO_OPTIMIZER_TRUST_RATIO_H
#define DSC_ZERO_OPTIMIZER_TRUST_RATIO_H

#include "zero/core/pass.h"

/* The difference between the update of a tensor and that of other tensors of its class. */
typedef struct dsc_tensor_step {
    double rate;  /* factor of step_size */
    double scale; /* factor of shrink */
} dsc_tensor_step;

typedef struct dsc_trust_ratio {
    dsc_buf device_buf, host_buf;              /* [tensor_count][2] sums of squares: of weights, of directions */
    dsc_buf all_buf;                           /* [W][piece_sums] the sums of all ranks */
    dsc_buf direction_buf, host_direction_buf; /* directions of one piece of a tensor, before they are squared */
    int64_t piece_sums;                        /* sums that one exchange takes */
    dsc_tensor_step *step;                     /* [tensor_count] */
} dsc_trust_ratio;

extern const dsc_zero_pass_ops dsc_trust_ratio_pass;

#endif
