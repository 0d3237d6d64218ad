/* attention_reference.h - attention in double precision, and what each element of a kernel's results may be off by: the
 * roundings that lead to it, counted beside the value. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_CHECKKERN_ATTENTION_REFERENCE_H
#define DSC_CHECKKERN_ATTENTION_REFERENCE_H

#include "tests/checkkern/ck_internal.h"

typedef struct shape {
    int32_t batch, tokens, heads, kv_heads, size;
    bool packed;  /* q, k, v in one tensor; else three with unused elements between rows */
    double scale_up; /* multiple of the usual 1 / sqrt(D): larger makes the softmax sharper */
    bool by_head; /* packed: q, k and v of a head side by side, then the next head's */
    bool all, hide; /* every key is seen; but some */
    int32_t documents; /* documents of about so many tokens, which see no others; 0: one */
    int32_t window, past; /* of dsc_attention_keys */
    float softcap, alibi, of_key; /* of dsc_attention_logits */
    bool sinks;
} shape;

/* Everything of one case. Tensors of the double reference are dense: [B,T,H,D] or [B,T,KV,D]; lse is [B,H,T]. */
typedef struct problem {
    shape s;
    dsc_dtype dtype;
    double scale;
    bool bf16_products;     /* the variant rounds probabilities to bf16 */
    bool gradients_known;   /* dq_want and the others are of bf16_products, and their tolerances have all roundings */
    double *q, *k, *v, *out, *lse, *d_out;       /* values that the kernel sees */
    double *out_want, *out_tol, *lse_want, *lse_tol;
    double *sinks, *d_sinks_want, *d_sinks_tol; /* [H] */
    double *dq_want, *dq_tol, *dk_want, *dk_tol, *dv_want, *dv_tol;
    int32_t *key_tokens;    /* [B,T], HIDDEN: nobody sees this key; NULL: none */
    int32_t *positions;     /* [B,T] a query's place in its document; NULL: in its sample */
} problem;

enum { HIDDEN = 3 };

static inline int64_t rows_of(const shape *s) { return (int64_t)s->batch * s->tokens; }
static inline int64_t q_count(const shape *s) { return rows_of(s) * s->heads * s->size; }
static inline int64_t kv_rows_of(const shape *s) { return rows_of(s) + s->past; }
static inline int64_t kv_count(const shape *s) { return kv_rows_of(s) * s->kv_heads * s->size; }

/* Bound of the error of x if it was rounded last as fp32 and then as the problem's dtype. */
double ck_attention_rounded(const problem *p, double x);
/* Zeros, to be freed. */
double *ck_attention_doubles(int64_t count);

void ck_attention_open(problem *p, const shape *s, dsc_dtype dtype);
void ck_attention_close(problem *p);
/* out_want, lse_want and their tolerances, of q, k and v. */
void ck_attention_forward(problem *p);
/* dq_want, dk_want, dv_want, d_sinks_want and their tolerances, of q, k, v, d_out and the given out and lse, as the
 * kernel. */
void ck_attention_backward(problem *p);

#endif
