/* embedding.h - token plus position embedding, and its deterministic backward. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_EMBEDDING_H
#define DSC_KERNELS_EMBEDDING_H
#include <dsc/types.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/* out[r] = factor * table[token[r]] + position[place] in fp32 as one multiply-add, rounded once. position may be NULL.
 * place is places[r], or without them r % T. Without tokens it is factor * table[r] + position[place], and out may be
 * table. */
typedef struct dsc_embedding_fwd_args {
    void *out;             /* [rows, C] */
    const int32_t *tokens; /* [rows], 0 <= token < vocab, or NULL */
    const void *table;     /* [vocab, C]; without tokens [rows, C] */
    const void *position;  /* [T, C], its first row that of a sample's first token, or NULL */
    const int32_t *places; /* [rows], 0 <= place < T, or NULL */
    int64_t rows, sequence, channels;
    dsc_dtype dtype;
    float factor; /* 0: 1 */
    bool parted;  /* the table is rows [first, first + vocab) of a longer one; those of other tokens are zeros */
    int64_t first, vocab; /* with `parted` */
} dsc_embedding_fwd_args;

/* d_table [vocab, C] and d_position [positions, C] are fp32 and wholly overwritten (rows nobody used become 0).
 * Row v of d_table is factor times the sum over r with token[r] == v in increasing r; no atomics. Either may be NULL.
 * scratch: dsc_embedding_bwd_scratch_bytes(rows, vocab). */
typedef struct dsc_embedding_bwd_args {
    float *d_table, *d_position;
    const void *d_out; /* [rows, C] */
    const int32_t *tokens;
    void *scratch;
    int64_t rows, sequence, channels, vocab, positions;
    bool has_padding; /* token `padding` gives its row nothing */
    int32_t padding;
    bool parted;            /* d_table has the rows of tokens [first, first + vocab); other tokens have none */
    int64_t first;          /* 0 without `parted` */
    int64_t position_first; /* the row of d_position that a sample's first token has */
    dsc_dtype dtype;
    float factor; /* d_table's; 0: 1 */
} dsc_embedding_bwd_args;

static inline float dsc_embedding_factor(float factor) { return factor != 0 ? factor : 1; }

/* The row of `table` that row r takes; -1: the table has none for its token. */
static inline int64_t dsc_embedding_row(const dsc_embedding_fwd_args *a, int64_t r)
{
    const int64_t row = a->tokens != NULL ? a->tokens[r] - (a->parted ? a->first : 0) : r;
    return a->parted && (row < 0 || row >= a->vocab) ? -1 : row;
}

/* The row of `d_table` that row r adds to, likewise. */
static inline int64_t dsc_embedding_bwd_row(const dsc_embedding_bwd_args *a, int64_t r)
{
    const int64_t row = a->tokens[r] - a->first;
    return a->parted && (row < 0 || row >= a->vocab) ? -1 : row;
}

/* The row of `d_table` that gets nothing; -1: there is none. */
static inline int64_t dsc_embedding_padding(const dsc_embedding_bwd_args *a)
{
    return a->has_padding ? a->padding - a->first : -1;
}

/* The row of `position` that row r adds. */
static inline int64_t dsc_embedding_position(const dsc_embedding_fwd_args *a, int64_t r)
{
    return a->places != NULL ? a->places[r] : r % a->sequence;
}

static inline int64_t dsc_embedding_bwd_scratch_bytes(int64_t rows, int64_t vocab)
{
    return (2 * rows + vocab) * (int64_t)sizeof(int32_t);
}

#ifdef __cplusplus
}
#endif
#endif
