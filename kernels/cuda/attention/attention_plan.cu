/* attention_plan.cu - see attention_plan.h.
 *
 * The kernels of warpgroups may not work with every card, driver or compiler. So both kernels of a shape are tried on
 * the same input (attention_trial.cu). If the difference is larger than rounding explains, the kernel does not work
 * here and is not used; otherwise it is, without regard to times. The choice then follows from card and shape alone, so
 * that fresh runs have equal bits. A shape's forward pass and its gradients are two plans.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/attention_sm90.h"
#include "kernels/cuda/attention/attention_trial.h"
#include "kernels/cuda/plan_text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

/* Plain bytes, compared as such: no padding. */
typedef struct attention_key {
    int64_t q_stride, kv_stride, out_stride, head_stride;
    int32_t batch, tokens, heads, kv_heads, size, window;
    uint8_t backward, all, hides, documents, zero[4];
} attention_key;

typedef struct attention_plan {
    attention_key key;
    dsc_attention_fwd_args shape; /* without pointers */
    bool from_text;               /* its choice comes from a text: not to be tried */
    dsc_attention_kind kind;      /* what it takes */
} attention_plan;

enum { PLANS_MAX = 64 }; /* a model's layers have one shape or two */

struct dsc_cuda_attention {
    dsc_alloc *alloc;
    void *encode; /* from dsc_cuda_attention_sm90_find; NULL: there is nothing to choose */
    bool cannot_start; /* the second kernels, as compiled: no encode then */
    pthread_mutex_t lock;
    attention_plan plans[PLANS_MAX];
    int32_t count;
};

namespace {

attention_key key_of(const dsc_attention_fwd_args *a, bool backward)
{
    attention_key key;
    memset(&key, 0, sizeof key);
    key.q_stride = a->q_stride, key.kv_stride = a->kv_stride, key.out_stride = a->out_stride;
    key.head_stride = dsc_attention_head_stride(a->head_stride, a->head_size);
    key.batch = a->batch, key.tokens = a->tokens, key.heads = a->heads, key.kv_heads = a->kv_heads;
    key.size = a->head_size, key.window = a->keys.all ? 0 : a->keys.window;
    key.backward = backward;
    key.documents = !a->keys.all && a->keys.positions != NULL;
    key.all = a->keys.all, key.hides = a->keys.all && a->keys.tokens != NULL;
    return key;
}

/* Fields of a key. */
dsc_attention_fwd_args forward_of(const dsc_attention_bwd_args *b)
{
    dsc_attention_fwd_args a = {};
    a.q_stride = b->q_stride, a.kv_stride = b->kv_stride, a.out_stride = b->out_stride;
    a.head_stride = b->head_stride;
    a.batch = b->batch, a.tokens = b->tokens, a.heads = b->heads, a.kv_heads = b->kv_heads;
    a.head_size = b->head_size, a.keys = b->keys;
    return a;
}

attention_plan *find(dsc_cuda_attention *x, const attention_key *key)
{
    for (int32_t i = 0; i < x->count; i++)
        if (memcmp(&x->plans[i].key, key, sizeof *key) == 0)
            return &x->plans[i];
    return NULL;
}

/* Two samples show the stride between samples. More would take memory that not every run of the shape has. */
enum { TRIAL_BATCH_MAX = 2 };

dsc_status choose(attention_trial *t, attention_plan *p, dsc_attention_tried *out, dsc_error *err)
{
    attention_found found = {};
    t->shape = p->shape;
    t->backward = p->key.backward, t->hides = p->key.hides, t->documents = p->key.documents;
    for (int32_t batch = TRIAL_BATCH_MAX; batch >= 1 && !found.fits; batch--) {
        t->shape.batch = batch < p->shape.batch ? batch : p->shape.batch;
        DSC_TRY(dsc_cuda_attention_try(t, &found, err));
    }
    if (!found.fits)
        return DSC_OK;
    p->kind = found.far == 0 ? DSC_ATTENTION_WARPGROUPS : DSC_ATTENTION_WARPS;
    out->tried++;
    out->wrong += found.far > 0;
    out->changed += p->kind == DSC_ATTENTION_WARPGROUPS;
    return DSC_OK;
}

dsc_status try_all(attention_trial *t, dsc_attention_tried *out, dsc_error *err)
{
    dsc_cuda_attention *x = t->at->attention;
    for (int32_t i = 0; i < x->count; i++) {
        if (x->plans[i].from_text)
            continue;
        out->shapes++;
        DSC_TRY(choose(t, &x->plans[i], out, err));
    }
    return DSC_OK;
}

/* ---- as text ---- */

enum { LINE_BYTES = 256 };

/* Everything of the key: two plans of one text would be one plan. */
void line_of(const attention_key *k, int kind, char line[LINE_BYTES])
{
    static const char *const names[DSC_ATTENTION_KINDS] = { "warps", "warpgroups", "warpgroups-in-turn",
                                                            "warpgroups-ahead", "warpgroups-staying" };
    const char *const keys = k->all ? k->hides ? "all but hidden" : "all" : k->documents ? "documents" : "causal";
    snprintf(line, LINE_BYTES,
             "attention %s%dx%d heads %d/%d of %d ld %" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
             " %s window %d by %s",
             k->backward ? "backward " : "", static_cast<int>(k->batch), static_cast<int>(k->tokens),
             static_cast<int>(k->heads), static_cast<int>(k->kv_heads), static_cast<int>(k->size), k->q_stride,
             k->kv_stride, k->out_stride, k->head_stride, keys, static_cast<int>(k->window), names[kind]);
}

} // namespace

dsc_status dsc_cuda_attention_open(dsc_alloc *alloc, int32_t arch, dsc_cuda_attention **out, dsc_error *err)
{
    dsc_cuda_attention *x = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *x, &x, err));
    x->alloc = alloc;
    x->encode = arch == 90 ? dsc_cuda_attention_sm90_find() : NULL;
    if (x->encode != NULL && !(dsc_cuda_attention_fwd_sm90_starts() && dsc_cuda_attention_bwd_sm90_starts())) {
        x->encode = NULL;
        x->cannot_start = true;
    }
    pthread_mutex_init(&x->lock, NULL); /* cannot fail with default attributes on Linux */
    *out = x;
    return DSC_OK;
}

void dsc_cuda_attention_close(dsc_cuda_attention **attention)
{
    dsc_cuda_attention *x = *attention;
    if (x == NULL)
        return;
    pthread_mutex_destroy(&x->lock);
    dsc_alloc_free(x->alloc, x);
    *attention = NULL;
}

/* Under the lock. */
static void prepare_pass(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape, const attention_key *key)
{
    if (find(x, key) != NULL || x->count == PLANS_MAX)
        return;
    x->plans[x->count] = {};
    x->plans[x->count].key = *key;
    x->plans[x->count++].shape = *shape;
}

void dsc_cuda_attention_prepare(dsc_cuda_attention *x, const dsc_attention_fwd_args *shape)
{
    dsc_attention_fwd_args a = *shape;
    const attention_key forward = key_of(&a, false), backward = key_of(&a, true);
    a.out = NULL, a.lse = NULL, a.q = a.k = a.v = NULL, a.scratch = NULL, a.keys.tokens = a.keys.positions = NULL;
    const dsc_attention_bwd_args b = dsc_cuda_attention_gradients_of(&a);
    if (x->encode == NULL)
        return;
    pthread_mutex_lock(&x->lock);
    if (dsc_cuda_attention_fwd_sm90_fits(&a))
        prepare_pass(x, &a, &forward);
    if (dsc_cuda_attention_bwd_sm90_fits(&b))
        prepare_pass(x, &a, &backward);
    pthread_mutex_unlock(&x->lock);
}

static dsc_attention_kind chosen(dsc_cuda_attention *x, const attention_key *key)
{
    pthread_mutex_lock(&x->lock);
    const attention_plan *p = find(x, key);
    const dsc_attention_kind kind = p != NULL ? p->kind : DSC_ATTENTION_WARPS;
    pthread_mutex_unlock(&x->lock);
    return kind;
}

void *dsc_cuda_attention_encode(const dsc_cuda_attention *x) { return x->encode; }

dsc_attention_kind dsc_cuda_attention_fwd_chosen(dsc_cuda_attention *x, const dsc_attention_fwd_args *a)
{
    if (x->encode == NULL || !dsc_cuda_attention_fwd_sm90_fits(a))
        return DSC_ATTENTION_WARPS;
    const attention_key key = key_of(a, false);
    return chosen(x, &key);
}

dsc_attention_kind dsc_cuda_attention_bwd_chosen(dsc_cuda_attention *x, const dsc_attention_bwd_args *b)
{
    if (x->encode == NULL || !dsc_cuda_attention_bwd_sm90_fits(b))
        return DSC_ATTENTION_WARPS;
    const dsc_attention_fwd_args a = forward_of(b);
    const attention_key key = key_of(&a, true);
    return chosen(x, &key);
}

dsc_status dsc_cuda_attention_choose(const dsc_cuda_launch *at, void *memory, int64_t memory_bytes,
                                     dsc_attention_tried *out, dsc_error *err)
{
    attention_trial t = { at, at->attention->encode, static_cast<char *>(memory), memory_bytes, {}, false, false,
                          false };
    DSC_ASSERT(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
    pthread_mutex_lock(&at->attention->lock);
    out->cannot_start = at->attention->cannot_start;
    const dsc_status status = try_all(&t, out, err);
    pthread_mutex_unlock(&at->attention->lock);
    return status;
}

void dsc_cuda_attention_plans_get(dsc_cuda_attention *x, char *text, int64_t capacity, int64_t *bytes)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        line_of(&x->plans[i].key, x->plans[i].kind, line);
        put_line(line, text, capacity, bytes);
    }
    pthread_mutex_unlock(&x->lock);
}

void dsc_cuda_attention_plans_set(dsc_cuda_attention *x, const char *text, int64_t *others)
{
    char line[LINE_BYTES];
    pthread_mutex_lock(&x->lock);
    for (int32_t i = 0; i < x->count; i++) {
        bool found = false;
        for (int kind = 0; kind < DSC_ATTENTION_KINDS && !found && text != NULL; kind++) {
            line_of(&x->plans[i].key, kind, line);
            found = has_line(text, line);
            if (found)
                x->plans[i].kind = static_cast<dsc_attention_kind>(kind);
        }
        x->plans[i].from_text = x->plans[i].from_text || found;
        *others += !found;
    }
    pthread_mutex_unlock(&x->lock);
}
