/* llama_sizes.c - the built-in sizes of Llama's families. SPDX-License-Identifier: Apache-2.0 */
#include "models/decoder.h"

/* Llama 3's scaling: the factor alone differs between its models. */
#define SCALED(by)                                                                                                    \
    { .kind = DSC_ROPE_LLAMA3, .theta = 500000, .factor = (by), .original_positions = 8192, .low_freq_factor = 1,     \
      .high_freq_factor = 4 }
#define PLAIN(base) { .kind = DSC_ROPE_DEFAULT, .theta = (base), .truncate = true }

typedef struct builtin_size {
    const char *name;
    const dsc_decoder_traits *traits;
    int64_t layers, channels, heads, kv_heads, head_size, inner, positions, vocab;
    int64_t sequence; /* default T */
    double norm_eps;
    bool tied;
    dsc_rope rope;
} builtin_size;

/* nano reads bytes, so that any text trains without a tokenizer. The others are as their makers published them. */
static const builtin_size sizes[] = {
    { "llama-nano", &dsc_traits_of_llama, 4, 128, 4, 2, 32, 352, 256, 256, 128, 1e-5, true, PLAIN(10000) },
    { "llama-2-7b", &dsc_traits_of_llama, 32, 4096, 32, 32, 128, 11008, 4096, 32000, 2048, 1e-5, false, PLAIN(10000) },
    { "llama-3.1-8b", &dsc_traits_of_llama, 32, 4096, 32, 8, 128, 14336, 131072, 128256, 2048, 1e-5, false, SCALED(8) },
    { "llama-3.2-1b", &dsc_traits_of_llama, 16, 2048, 32, 8, 64, 8192, 131072, 128256, 2048, 1e-5, true, SCALED(32) },
    { "mistral-7b", &dsc_traits_of_mistral, 32, 4096, 32, 8, 128, 14336, 32768, 32768, 2048, 1e-5, false,
      PLAIN(1000000) },
    { "qwen2.5-0.5b", &dsc_traits_of_qwen2, 24, 896, 14, 2, 64, 4864, 32768, 151936, 2048, 1e-6, true, PLAIN(1000000) },
    { "qwen3-0.6b", &dsc_traits_of_qwen3, 28, 1024, 16, 8, 128, 3072, 40960, 151936, 2048, 1e-6, true, PLAIN(1000000) },
};

const char *dsc_llama_builtin(const void *family_traits, int32_t index, dsc_lm_config *out)
{
    const dsc_decoder_traits *traits = family_traits;
    const builtin_size *size = NULL;
    for (size_t i = 0; i < DSC_COUNT(sizes) && index >= 0 && size == NULL; i++)
        if (sizes[i].traits == traits && index-- == 0)
            size = &sizes[i];
    if (size == NULL)
        return NULL;
    if (out != NULL) {
        dsc_decoder_config *config = (dsc_decoder_config *)(void *)out;
        *config = (dsc_decoder_config) { .lm = { .layers = size->layers,
                                                 .channels = size->channels,
                                                 .positions = size->positions,
                                                 .sequence = size->sequence,
                                                 .vocab = size->vocab,
                                                 .norm_eps = size->norm_eps,
                                                 .init_std = 0.02,
                                                 .tied = size->tied },
                                         .traits = traits,
                                         .heads = size->heads,
                                         .kv_heads = size->kv_heads,
                                         .head_size = size->head_size,
                                         .inner = size->inner,
                                         .activation = DSC_SILU,
                                         .qkv_bias = traits->qkv_bias,
                                         .rope = size->rope };
        dsc_rope_set(&config->rope, config->head_size);
    }
    return size->name;
}
