/* exchange.h - bytes that this rank exchanges, and the time that its computation waits for exchanges.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_EXCHANGE_H
#define DSC_ENGINE_EXCHANGE_H

#include <dsc/dsc.h>

enum { DSC_EXCHANGE_KINDS = 3 }; /* dsc_exchange */

typedef struct dsc_exchange_counts {
    int64_t sent[DSC_EXCHANGE_KINDS], received[DSC_EXCHANGE_KINDS];
    int64_t wait_ns;
} dsc_exchange_counts;

/* Since the engine's opening, over all its communicators. */
void dsc_engine_exchange_counts(const dsc_engine *engine, dsc_exchange_counts *out);
/* Counts that `now` has beyond `before`. */
dsc_exchange_counts dsc_exchange_since(const dsc_exchange_counts *before, const dsc_exchange_counts *now);

#endif
