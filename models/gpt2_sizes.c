/* gpt2_sizes.c - the built-in sizes. SPDX-License-Identifier: Apache-2.0 */
#include "models/dense.h"

typedef struct builtin_size {
    const char *name;
    int64_t layers, heads, channels, positions, vocab;
    int64_t sequence; /* default T */
} builtin_size;

/* nano and micro read bytes, so that any text trains without a tokenizer; small-384 is the size of our benches. */
static const builtin_size sizes[] = {
    { "gpt2-nano", 4, 4, 128, 256, 256, 128 },
    { "gpt2-micro", 6, 6, 192, 512, 256, 256 },
    { "gpt2-small-384", 6, 6, 384, 256, 50257, 256 },
    { "gpt2-124m", 12, 12, 768, 1024, 50257, 1024 },
    { "gpt2", 12, 12, 768, 1024, 50257, 1024 },
    { "gpt2-medium", 24, 16, 1024, 1024, 50257, 1024 },
    { "gpt2-large", 36, 20, 1280, 1024, 50257, 1024 },
    { "gpt2-xl", 48, 25, 1600, 1024, 50257, 1024 },
};

const char *dsc_gpt2_builtin(const void *traits, int32_t index, dsc_lm_config *out)
{
    (void)traits;
    if (index < 0 || index >= (int32_t)DSC_COUNT(sizes))
        return NULL;
    const builtin_size *size = &sizes[index];
    if (out != NULL)
        *(dsc_dense_config *)(void *)out = (dsc_dense_config){
            .lm = { .layers = size->layers, .channels = size->channels, .positions = size->positions,
                    .sequence = size->sequence, .vocab = size->vocab, .norm_eps = 1e-5, .init_std = 0.02,
                    .tied = true },
            .traits = &dsc_gpt2_traits, .heads = size->heads, .inner = 4 * size->channels, .attention_bias = true,
            .scale_attention = true
        };
    return size->name;
}
