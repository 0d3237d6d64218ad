/* replicas.h - whether ranks that hold the same parameters read the same bits.
 *
 * In steps of dsc.check_replicas each rank takes fingerprints of the parameters that its modules read. They are those
 * of the first forward pass: whole groups at stages 0 to 2, gathered windows at stage 3. The numbers of all ranks are
 * compared before the step's update. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_REPLICAS_H
#define DSC_ENGINE_REPLICAS_H

#include <dsc/dsc.h>

/* After a step's sums; nothing in a step that is not due. Collective. DSC_ERR_DEVICE: a rank deviates, and is named. */
dsc_status dsc_replicas_compare(dsc_engine *engine, dsc_error *err);

#endif
