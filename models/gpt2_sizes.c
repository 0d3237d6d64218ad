/* gpt2_sizes.c - the built-in sizes. SPDX-License-Identifier: Apache-2.0 */
#include "models/families.h"
#include "models/gpt2.h"

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

const char *dsc_gpt2_builtin_name(int32_t index)
{
    return index >= 0 && index < (int32_t)DSC_COUNT(sizes) ? sizes[index].name : NULL;
}

dsc_status dsc_gpt2_open_builtin(dsc_model **out, dsc_alloc *alloc, int32_t index, const dsc_model_options *options,
                                 dsc_error *err)
{
    const builtin_size *size = &sizes[index];
    if (options->seq_length > size->positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, size->name,
                        "a sequence length of %lld is asked for; the model has %lld positions: give at most that many "
                        "with --seq-len (dsc.seq_length)",
                        (long long)options->seq_length, (long long)size->positions);
    const dsc_gpt2_config config = {
        .layers = size->layers, .heads = size->heads, .channels = size->channels, .inner = 4 * size->channels,
        .positions = size->positions, .sequence = options->seq_length > 0 ? options->seq_length : size->sequence,
        .vocab = size->vocab,
        .vocab_rows = dsc_align_up(size->vocab, dsc_max_i64(1, options->vocab_multiple)),
        .norm_eps = 1e-5, .init_std = 0.02, .scale_attention = true, .tied = true
    };
    return dsc_gpt2_open(out, alloc, size->name, &config, NULL, NULL, NULL, err);
}
