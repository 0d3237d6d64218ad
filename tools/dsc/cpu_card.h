/* cpu_card.h - a CPU as a card of `dsc simulate`: measured by steps of one rank, kept in a file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_DSC_CPU_CARD_H
#define DSC_TOOLS_DSC_CPU_CARD_H

#include "kernels/virtual/launch_times.h"
#include "tools/dsc/plan_card.h"

/* Steps of one rank with these options, on this machine: each launch, the engine's own part, and a small exchange of
 * two ranks. `times` is empty, with rows; card->rates borrow it. */
DSC_MUST_USE dsc_status cpu_card_measure(const dsc_engine_options *options, dsc_launch_times *times, plan_card *card,
                                         dsc_error *err);
DSC_MUST_USE dsc_status cpu_card_write(const plan_card *card, const char *path, dsc_error *err);
/* Reads what cpu_card_write wrote. */
DSC_MUST_USE dsc_status cpu_card_read(dsc_alloc *alloc, const char *path, dsc_launch_times *times, plan_card *card,
                                      dsc_error *err);

#endif
