/* attention_logits.h - logits of scores before the softmax, and a sink in its sum: parts of attention_tile.h, over its
 * primitives. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ATTENTION_LOGITS_H
#define DSC_KERNELS_CPU_ATTENTION_LOGITS_H

/* tanh(x / (2 log2 e)). Beyond 60 it is 1; NaN stays: the second operand of a maximum is what a NaN gives. */
ATT_INLINE att_vec att_tanh(att_vec x)
{
    const att_vec zero = att_set1(0), one = att_set1(1), least = att_set1(-60);
    const att_vec minus = att_max(least, att_sub(zero, x));
    const att_vec power = att_exp2(att_max(least, att_sub(zero, minus)));
    return att_sub(one, att_div(att_set1(2), att_add(one, power)));
}

/* Scores of ATT_LANES keys from `key` on become logits, in vectors first .. vecs - 1 of queries, of which `query` has
 * the first lane. With dp, the gradients of their probabilities become dp - delta times the logit's slope. */
static void att_make_logits(float *s, float *dp, const float *delta, const dsc_attention_head_logits *rule,
                            int64_t query, int64_t key, int64_t first, int64_t vecs)
{
    const bool capped = rule->softcap > 0;
    const att_vec factor = att_set1(capped ? 2 * ATT_LOG2E * rule->scale / rule->softcap : rule->scale);
    const att_vec cap = att_set1(rule->softcap), minus = att_set1(-rule->slope), one = att_set1(1);
    float lane[ATT_LANES];
    for (int64_t v = first; v < vecs; v++) {
        for (int64_t i = 0; i < ATT_LANES; i++)
            lane[i] = (float)(query + v * ATT_LANES + i);
        const att_vec place = att_load(lane), d = dp == NULL ? one : att_load(delta + v * ATT_LANES);
        for (int64_t k = 0; k < ATT_LANES; k++) {
            const int64_t at = k * ATT_TILE + v * ATT_LANES;
            const att_vec other = att_set1((float)(key + k));
            const float of_key = dsc_attention_key_addend(rule->of_key, rule->slope, (int32_t)(key + k));
            const att_vec distance = att_max(att_sub(place, other), att_sub(other, place));
            att_vec x = att_mul(att_load(s + at), factor), slope = one;
            if (capped) {
                const att_vec t = att_tanh(x);
                x = att_mul(t, cap);
                slope = att_sub(one, att_mul(t, t));
            }
            att_store(s + at, rule->of_key > 0 ? att_add(x, att_set1(of_key)) : att_fma(distance, minus, x));
            if (dp != NULL)
                att_store(dp + at, att_mul(att_sub(att_load(dp + at), d), slope));
        }
    }
}

/* The sink becomes a part of sums and maxima; alpha is the factor of outputs. */
static void att_add_sink(dsc_attention_fwd_scratch *sc, float sink)
{
    for (int64_t v = 0; v < ATT_TILE_VECS; v++) {
        const att_vec old = att_load(sc->max + v * ATT_LANES), own = att_set1(sink), max = att_max(old, own);
        const att_vec alpha = att_exp2(att_sub(old, max)), more = att_exp2(att_sub(own, max));
        att_store(sc->sum + v * ATT_LANES, att_add(att_mul(att_load(sc->sum + v * ATT_LANES), alpha), more));
        att_store(sc->max + v * ATT_LANES, max);
        att_store(sc->alpha + v * ATT_LANES, alpha);
    }
}

#endif
