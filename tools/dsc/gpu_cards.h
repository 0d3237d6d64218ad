/* gpu_cards.h - GPUs by name and memory sizes as people write them. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_GPU_CARDS_H
#define DSC_TOOLS_GPU_CARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both give what an engine can have of a card: its memory without what the driver and CUDA take. False: unknown. */
bool dsc_gpu_card_bytes(const char *name, int64_t *bytes);   /* "H100", "A100-80GB", "NVIDIA A100-SXM4-80GB" */
/* "80GB", "80 GiB", "81559MiB", "80": GB is 10^9 bytes; GiB, G and no unit are 2^30. */
bool dsc_gpu_memory_bytes(const char *text, int64_t *bytes);
/* Whether `name` means `card`, with or without its memory: "NVIDIA H100 80GB HBM3" and "H100". */
bool dsc_gpu_card_is(const char *name, const char *card);
void dsc_gpu_card_names(char *out, size_t out_bytes);

#endif
