/* fp8_cache.c - see fp8_cache.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/fp8_cache.h"

#include <assert.h>
#include <string.h>

#define ALIGN 256

/* A matrix in both ways behind its scale. */
static int64_t matrix_bytes(int64_t elements)
{
    static_assert(sizeof(dsc_fp8_scale) % ALIGN == 0, "the numbers behind a scale are aligned");
    return elements == 0 ? 0 : (int64_t)sizeof(dsc_fp8_scale) + 2 * dsc_align_up(elements, ALIGN);
}

/* A kept input: transposed only. */
static int64_t kept_bytes(int64_t elements) { return (int64_t)sizeof(dsc_fp8_scale) + dsc_align_up(elements, ALIGN); }

static bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t at = (uintptr_t)a, other = (uintptr_t)b;
    return at < other + (uintptr_t)b_bytes && other < at + (uintptr_t)a_bytes;
}

void dsc_fp8_plan_module(dsc_fp8_plan *plan, int32_t first, int32_t count)
{
    DSC_ASSERT(first >= 0 && count >= 0);
    plan->first = first;
    plan->count = count;
    plan->input_bytes = plan->input_sum = 0;
    plan->last_weight = -1;
}

void dsc_fp8_plan_layer(dsc_fp8_plan *plan, const dsc_fp8_layer *layer)
{
    const int64_t numbers = layer->in * layer->out, most = layer->rows * dsc_max_i64(layer->in, layer->out);
    DSC_ASSERT(layer->weight >= 0 && layer->weight < plan->count);
    DSC_ASSERT((layer->rows | layer->in | layer->out) % DSC_FP8_UNIT == 0);
    if (plan->layer_numbers != NULL)
        plan->layer_numbers[plan->first + layer->weight] = numbers;
    plan->operand_elements = dsc_max_i64(plan->operand_elements, most);
    if (!plan->options.keeps_weights) {
        plan->weight_elements = dsc_max_i64(plan->weight_elements, numbers);
    } else if (plan->weight_at[plan->first + layer->weight] < 0) {
        plan->weight_at[plan->first + layer->weight] = plan->weight_bytes;
        plan->weight_bytes += matrix_bytes(numbers);
    }
    if (layer->weight <= plan->last_weight) /* the module again, for other rows */
        plan->input_sum = 0;
    plan->last_weight = layer->weight;
    plan->input_sum += layer->keeps_input ? kept_bytes(layer->rows * layer->in) : 0;
    plan->input_bytes = dsc_max_i64(plan->input_bytes, plan->input_sum);
}

int64_t dsc_fp8_plan_bytes(const dsc_fp8_plan *plan)
{
    return DSC_FP8_SLOTS * matrix_bytes(plan->operand_elements) + matrix_bytes(plan->weight_elements) +
           plan->weight_bytes;
}

void dsc_fp8_cache_open(dsc_fp8_cache *cache, const dsc_fp8_plan *plan, void *memory, bool *is_cast)
{
    DSC_ASSERT((uintptr_t)memory % ALIGN == 0);
    *cache = (dsc_fp8_cache) { .options = plan->options,
                               .weight_at = plan->weight_at,
                               .is_cast = is_cast,
                               .operands = memory,
                               .operand_elements = plan->operand_elements,
                               .weight_elements = plan->weight_elements };
    cache->weight_work = cache->operands + DSC_FP8_SLOTS * matrix_bytes(plan->operand_elements);
    cache->weights = cache->weight_work + matrix_bytes(plan->weight_elements);
}

void dsc_fp8_new_weights(dsc_fp8_cache *cache, int32_t count) { memset(cache->is_cast, 0, (size_t)count); }

static void forget(dsc_fp8_cache *cache)
{
    for (int i = 0; i < DSC_FP8_SLOTS; i++)
        cache->slot[i].from = NULL;
}

void dsc_fp8_begin(dsc_fp8_cache *cache, const dsc_fp8_call *call)
{
    DSC_ASSERT(call->first >= 0);
    DSC_ASSERT((uintptr_t)call->room % ALIGN == 0);
    cache->call = *call;
    cache->room_used = 0;
    forget(cache);
    for (int32_t i = 0; i < call->count && call->saves && call->inputs != NULL; i++)
        call->inputs[call->first + i] = (dsc_fp8_matrix) { 0 };
}

/* Casts to the memory of a matrix of at most `elements`. kept: where the scale and the columns go instead, or NULL. */
static dsc_status cast_to(char *memory, int64_t elements, char *kept, dsc_stream *stream, const dsc_cast_fp8_args *what,
                          dsc_fp8_side side, dsc_fp8_matrix *out, dsc_error *err)
{
    dsc_cast_fp8_args args = *what;
    DSC_ASSERT(what->row_count * what->col_count <= elements);
    uint8_t *const numbers = (uint8_t *)memory + sizeof(dsc_fp8_scale);
    args.scale = (dsc_fp8_scale *)(void *)(kept != NULL ? kept : memory);
    args.rows = (side & DSC_FP8_ROWS) != 0 ? numbers : NULL;
    args.columns = (side & DSC_FP8_COLUMNS) != 0 ? numbers + dsc_align_up(elements, ALIGN) : NULL;
    if (kept != NULL)
        args.columns = (uint8_t *)kept + sizeof(dsc_fp8_scale);
    *out = (dsc_fp8_matrix) { args.rows, args.columns, args.scale, what->format };
    return DSC_RUN(stream, CAST_FP8, &args, err);
}

static bool has(const dsc_fp8_matrix *matrix, dsc_fp8_side side)
{
    return ((side & DSC_FP8_ROWS) == 0 || matrix->rows != NULL) &&
           ((side & DSC_FP8_COLUMNS) == 0 || matrix->columns != NULL);
}

static bool is_of(const dsc_fp8_slot *slot, const dsc_cast_fp8_args *what)
{
    return slot->from == what->from && slot->row_count == what->row_count && slot->col_count == what->col_count &&
           slot->matrix.format == what->format;
}

/* A matrix of the slots, cast unless it is there. kept: as of cast_to. */
static dsc_status find(dsc_fp8_cache *cache, dsc_stream *stream, const dsc_cast_fp8_args *what, dsc_fp8_side side,
                       char *kept, dsc_fp8_matrix *out, dsc_error *err)
{
    dsc_fp8_slot *slot = &cache->slot[0];
    DSC_ASSERT(what->from != NULL);
    if (stream->calls != cache->seen)
        forget(cache);
    for (int i = 0; i < DSC_FP8_SLOTS; i++) {
        if (is_of(&cache->slot[i], what)) {
            slot = &cache->slot[i];
            break;
        }
        if (cache->slot[i].used < slot->used)
            slot = &cache->slot[i];
    }
    if (!is_of(slot, what) || !has(&slot->matrix, side)) {
        char *const memory = cache->operands + (slot - cache->slot) * matrix_bytes(cache->operand_elements);
        slot->from = NULL; /* also after a failure */
        DSC_TRY(cast_to(memory, cache->operand_elements, kept, stream, what, side, &slot->matrix, err));
        slot->from = what->from;
        slot->row_count = what->row_count, slot->col_count = what->col_count;
    }
    slot->used = ++cache->clock;
    cache->seen = stream->calls;
    *out = slot->matrix;
    return DSC_OK;
}

dsc_status dsc_fp8_operand(dsc_fp8_cache *cache, dsc_stream *stream, const dsc_cast_fp8_args *what, dsc_fp8_side side,
                           dsc_fp8_matrix *out, dsc_error *err)
{
    return find(cache, stream, what, side, NULL, out, err);
}

dsc_status dsc_fp8_input(dsc_fp8_cache *cache, dsc_stream *stream, int32_t weight, const dsc_cast_fp8_args *what,
                         dsc_fp8_matrix *out, dsc_error *err)
{
    const dsc_fp8_call *call = &cache->call;
    const int64_t bytes = kept_bytes(what->row_count * what->col_count);
    DSC_ASSERT(weight >= 0);
    if (!call->saves || call->inputs == NULL)
        return find(cache, stream, what, DSC_FP8_ROWS, NULL, out, err);
    char *const kept = call->room_bytes - cache->room_used >= bytes ? call->room + cache->room_used : NULL;
    DSC_TRY(find(cache, stream, what, kept != NULL ? DSC_FP8_BOTH : DSC_FP8_ROWS, kept, out, err));
    /* Also what an earlier layer of the same input has kept. */
    if (out->columns != NULL && overlap(out->columns, 1, call->room, call->room_bytes))
        call->inputs[call->first + weight] = *out;
    if (kept != NULL && out->columns == (const uint8_t *)kept + sizeof(dsc_fp8_scale))
        cache->room_used += bytes;
    return DSC_OK;
}

bool dsc_fp8_kept_input(const dsc_fp8_cache *cache, int32_t weight, dsc_fp8_matrix *out)
{
    const dsc_fp8_call *call = &cache->call;
    *out = call->inputs != NULL ? call->inputs[call->first + weight] : (dsc_fp8_matrix) { 0 };
    return out->columns != NULL;
}

bool dsc_fp8_is_gathered(const dsc_fp8_cache *cache, int32_t weight)
{
    DSC_ASSERT(weight >= 0);
    return cache->gathered != NULL && cache->gathered[cache->call.first + weight] != NULL;
}

/* As it is where it was gathered to, transposed in the work space. */
static dsc_status gathered_weight(dsc_fp8_cache *cache, dsc_stream *stream, int32_t number,
                                  const dsc_cast_fp8_args *what, dsc_fp8_side side, dsc_fp8_matrix *out, dsc_error *err)
{
    dsc_cast_fp8_args turn = *what;
    *out = (dsc_fp8_matrix) { what->from, NULL, cache->gathered[number], DSC_FP8_E4M3 };
    if (side == DSC_FP8_ROWS)
        return DSC_OK;
    DSC_ASSERT(what->row_count * what->col_count <= cache->weight_elements);
    turn.from_fp8 = true;
    turn.columns = (uint8_t *)cache->weight_work + sizeof(dsc_fp8_scale);
    out->columns = turn.columns;
    return DSC_RUN(stream, CAST_FP8, &turn, err);
}

dsc_status dsc_fp8_weight(dsc_fp8_cache *cache, dsc_stream *stream, int32_t weight, const dsc_cast_fp8_args *what,
                          dsc_fp8_side side, dsc_fp8_matrix *out, dsc_error *err)
{
    const int32_t number = cache->call.first + weight;
    const int64_t elements = what->row_count * what->col_count, at = cache->weight_at[number];
    DSC_ASSERT(weight >= 0);
    /* The cast of a weight writes to the cache's own memory alone. */
    const bool nothing_else = stream->calls == cache->seen;
    if (dsc_fp8_is_gathered(cache, weight)) {
        DSC_TRY(gathered_weight(cache, stream, number, what, side, out, err));
    } else if (at < 0) {
        DSC_TRY(cast_to(cache->weight_work, cache->weight_elements, NULL, stream, what, side, out, err));
    } else if (!cache->is_cast[number]) {
        DSC_TRY(cast_to(cache->weights + at, elements, NULL, stream, what, DSC_FP8_BOTH, out, err));
        cache->is_cast[number] = true;
    } else {
        const uint8_t *const numbers = (const uint8_t *)cache->weights + at + sizeof(dsc_fp8_scale);
        *out = (dsc_fp8_matrix) { numbers, numbers + dsc_align_up(elements, ALIGN),
                                  (const dsc_fp8_scale *)(const void *)(cache->weights + at), what->format };
    }
    if (nothing_else)
        cache->seen = stream->calls;
    return DSC_OK;
}

void dsc_fp8_wrote(dsc_fp8_cache *cache, const dsc_stream *stream, const void *to, int64_t bytes)
{
    for (int i = 0; i < DSC_FP8_SLOTS; i++) {
        dsc_fp8_slot *slot = &cache->slot[i];
        if (slot->from != NULL && overlap(slot->from, 2 * slot->row_count * slot->col_count, to, bytes))
            slot->from = NULL;
    }
    cache->seen = stream->calls;
}
