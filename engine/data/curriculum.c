/* curriculum.c - see curriculum.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/curriculum.h"

#include <math.h>

#include "base/base.h"

/* Difficulty from the root of the completed share of steps, rounded down to a multiple of the difficulty step. The
 * lower bound is the first multiple that reaches the least difficulty. */
static int64_t root_difficulty(const dsc_curriculum *c, int64_t step)
{
    const double share = pow((double)step / (double)c->total_steps, 1.0 / c->root_degree);
    const double exact = floor(share * (double)(c->max_difficulty - c->min_difficulty) + (double)c->min_difficulty);
    if (!(exact < (double)c->max_difficulty + (double)c->difficulty_step)) /* rounded down it is no less */
        return c->max_difficulty;
    const int64_t whole = (int64_t)exact, least = dsc_align_up(c->min_difficulty, c->difficulty_step);
    return dsc_min_i64(dsc_max_i64(whole - whole % c->difficulty_step, least), c->max_difficulty);
}

/* The last stair begins behind the last of the steps, also where these do not ascend. */
static int64_t stair_difficulty(const dsc_curriculum *c, int64_t step)
{
    const int last = c->stair_count - 1;
    for (int i = 0; i < last && step <= c->last_step[last - 1]; i++)
        if (step <= c->last_step[i])
            return c->stair[i];
    return c->stair[last];
}

/* Once the largest difficulty is reached it stays, whatever stairs come later. */
static int64_t climbed_difficulty(const dsc_curriculum *c, int64_t step)
{
    int64_t reached = stair_difficulty(c, step), first = step;
    for (int i = -1; i < c->stair_count - 1; i++) {
        const int64_t begins = i < 0 ? 1 : c->last_step[i] + 1, there = stair_difficulty(c, begins);
        if (begins < first && there >= c->max_difficulty) {
            first = begins;
            reached = there;
        }
    }
    return reached;
}

int64_t dsc_curriculum_difficulty(const dsc_curriculum *c, int64_t step)
{
    DSC_ASSERT(step >= 1);
    if (c->min_difficulty >= c->max_difficulty)
        return c->min_difficulty;
    return c->stair_count > 0 ? climbed_difficulty(c, step) : root_difficulty(c, step);
}

int64_t dsc_curriculum_length(const dsc_curriculum *c, int64_t step, int64_t longest)
{
    return c->enabled ? dsc_min_i64(dsc_curriculum_difficulty(c, step), longest) : longest;
}

/* Into its place among `count` ascending ones, when it is new and there is room; returns how many there are then. */
static int insert(int64_t value, int64_t *out, int count)
{
    int at = 0;
    while (at < count && out[at] < value)
        at++;
    if ((at < count && out[at] == value) || count == DSC_CURRICULUM_LENGTHS_MAX)
        return at < count && out[at] == value ? count : count + 1;
    for (int i = count; i > at; i--)
        out[i] = out[i - 1];
    out[at] = value;
    return count + 1;
}

int dsc_curriculum_lengths(const dsc_curriculum *c, int64_t longest, int64_t *out)
{
    int count = 0;
    if (!c->enabled)
        return 0;
    int64_t length = dsc_curriculum_difficulty(c, 1);
    if (length < longest)
        count = insert(length, out, count);
    if (c->min_difficulty < c->max_difficulty && c->stair_count == 0)
        for (length += c->difficulty_step; length < dsc_min_i64(longest, c->max_difficulty) &&
             count <= DSC_CURRICULUM_LENGTHS_MAX; length += c->difficulty_step)
            count = insert(length, out, count);
    for (int i = 0; i < c->stair_count && count <= DSC_CURRICULUM_LENGTHS_MAX; i++)
        if (c->stair[i] < longest)
            count = insert(c->stair[i], out, count);
    if (c->max_difficulty < longest && c->stair_count == 0 && count <= DSC_CURRICULUM_LENGTHS_MAX)
        count = insert(c->max_difficulty, out, count);
    return count;
}
