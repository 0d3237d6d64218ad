/* fp8_cache.c - see fp8_cache.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/fp8_cache.h"

#include <assert.h>
#include <string.h>

#define ALIGN 256

/* Steps of the blocks of a matrix in one of both ways, and in both. */
static int64_t steps_bytes(dsc_fp8_blocks blocks, int64_t outer, int64_t inner)
{
    return dsc_align_up(dsc_fp8_step_count(blocks, outer, inner) * (int64_t)sizeof(float), ALIGN);
}

static int64_t both_steps_bytes(dsc_fp8_blocks blocks, int64_t rows, int64_t cols)
{
    return steps_bytes(blocks, rows, cols) + steps_bytes(blocks, cols, rows);
}

/* A matrix in both ways behind its scale, and steps of blocks behind it. */
static int64_t matrix_bytes(int64_t elements, int64_t steps)
{
    static_assert(sizeof(dsc_fp8_scale) % ALIGN == 0, "the numbers behind a scale are aligned");
    return elements == 0 ? 0 : (int64_t)sizeof(dsc_fp8_scale) + 2 * dsc_align_up(elements, ALIGN) + steps;
}

/* A kept input: transposed only. */
static int64_t kept_bytes(dsc_fp8_blocks blocks, int64_t rows, int64_t cols)
{
    return (int64_t)sizeof(dsc_fp8_scale) + dsc_align_up(rows * cols, ALIGN) + steps_bytes(blocks, cols, rows);
}

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
    const dsc_fp8_blocks runs = plan->options.blocks ? DSC_FP8_BLOCKS_ROW : DSC_FP8_BLOCKS_NONE;
    const dsc_fp8_blocks squares = plan->options.blocks ? DSC_FP8_BLOCKS_SQUARE : DSC_FP8_BLOCKS_NONE;
    const int64_t steps = both_steps_bytes(squares, layer->out, layer->in);
    plan->operand_steps = dsc_max_i64(plan->operand_steps, both_steps_bytes(runs, layer->rows, layer->in));
    plan->operand_steps = dsc_max_i64(plan->operand_steps, both_steps_bytes(runs, layer->rows, layer->out));
    if (plan->layer_numbers != NULL)
        plan->layer_numbers[plan->first + layer->weight] = numbers;
    plan->operand_elements = dsc_max_i64(plan->operand_elements, most);
    if (!plan->options.keeps_weights) {
        plan->weight_elements = dsc_max_i64(plan->weight_elements, numbers);
        plan->weight_steps = dsc_max_i64(plan->weight_steps, steps);
    } else if (plan->weight_at[plan->first + layer->weight] < 0) {
        plan->weight_at[plan->first + layer->weight] = plan->weight_bytes;
        plan->weight_bytes += matrix_bytes(numbers, steps);
    }
    if (layer->weight <= plan->last_weight) /* the module again, for other rows */
        plan->input_sum = 0;
    plan->last_weight = layer->weight;
    plan->input_sum += layer->keeps_input ? kept_bytes(runs, layer->rows, layer->in) : 0;
    plan->input_bytes = dsc_max_i64(plan->input_bytes, plan->input_sum);
}

int64_t dsc_fp8_plan_bytes(const dsc_fp8_plan *plan)
{
    return DSC_FP8_SLOTS * matrix_bytes(plan->operand_elements, plan->operand_steps) +
           matrix_bytes(plan->weight_elements, plan->weight_steps) + plan->weight_bytes;
}

void dsc_fp8_cache_open(dsc_fp8_cache *cache, const dsc_fp8_plan *plan, void *memory, bool *is_cast)
{
    DSC_ASSERT((uintptr_t)memory % ALIGN == 0);
    *cache = (dsc_fp8_cache) { .options = plan->options,
                               .weight_at = plan->weight_at,
                               .is_cast = is_cast,
                               .operands = memory,
                               .operand_elements = plan->operand_elements,
                               .weight_elements = plan->weight_elements,
                               .operand_steps = plan->operand_steps,
                               .weight_steps = plan->weight_steps };
    cache->weight_work = cache->operands + DSC_FP8_SLOTS * matrix_bytes(plan->operand_elements, plan->operand_steps);
    cache->weights = cache->weight_work + matrix_bytes(plan->weight_elements, plan->weight_steps);
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

/* Places in the memory of a matrix of at most `elements`. */
static dsc_fp8_matrix places_of(char *memory, int64_t elements, const dsc_cast_fp8_args *what)
{
    char *const rows = memory + sizeof(dsc_fp8_scale), *const columns = rows + dsc_align_up(elements, ALIGN);
    char *const steps = columns + dsc_align_up(elements, ALIGN);
    return (dsc_fp8_matrix) {
        .rows = (uint8_t *)rows,
        .columns = (uint8_t *)columns,
        .scale = (const dsc_fp8_scale *)(void *)memory,
        .format = what->format,
        .blocks = what->blocks,
        .row_steps = (const float *)(void *)steps,
        .column_steps = (const float *)(void *)(steps + steps_bytes(what->blocks, what->row_count, what->col_count)),
    };
}

/* Casts to the memory of a matrix of at most `elements`. kept: where the scale and the columns go instead, or NULL. */
static dsc_status cast_to(char *memory, int64_t elements, char *kept, dsc_stream *stream, const dsc_cast_fp8_args *what,
                          dsc_fp8_side side, dsc_fp8_matrix *out, dsc_error *err)
{
    dsc_cast_fp8_args args = *what;
    DSC_ASSERT(what->row_count * what->col_count <= elements);
    *out = places_of(memory, elements, what);
    if (kept != NULL) {
        char *const numbers = kept + sizeof(dsc_fp8_scale);
        out->scale = (const dsc_fp8_scale *)(void *)kept;
        out->columns = (uint8_t *)numbers;
        out->column_steps = (const float *)(void *)(numbers + dsc_align_up(what->row_count * what->col_count, ALIGN));
    }
    out->rows = (side & DSC_FP8_ROWS) != 0 ? out->rows : NULL;
    out->columns = (side & DSC_FP8_COLUMNS) != 0 ? out->columns : NULL;
    args.scale = (dsc_fp8_scale *)(uintptr_t)out->scale;
    args.rows = (uint8_t *)(uintptr_t)out->rows;
    args.columns = (uint8_t *)(uintptr_t)out->columns;
    args.row_steps = (float *)(uintptr_t)out->row_steps;
    args.column_steps = (float *)(uintptr_t)out->column_steps;
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
        char *const memory =
            cache->operands + (slot - cache->slot) * matrix_bytes(cache->operand_elements, cache->operand_steps);
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
    const int64_t bytes = kept_bytes(what->blocks, what->row_count, what->col_count);
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
    *out = (dsc_fp8_matrix) { .rows = what->from, .scale = cache->gathered[number], .format = DSC_FP8_E4M3 };
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
        *out = places_of(cache->weights + at, elements, what);
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
