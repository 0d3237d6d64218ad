/* curriculum.h - how long a step's samples are while a run goes from short ones to whole ones.
 *
 * The difficulty of a step is a pure function of its number, as DeepSpeed's CurriculumScheduler computes it, so that a
 * resumed run goes on where it was. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_CURRICULUM_H
#define DSC_ENGINE_DATA_CURRICULUM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DSC_CURRICULUM_STAIRS_MAX 64   /* difficulties of fixed_discrete */
#define DSC_CURRICULUM_LENGTHS_MAX 256 /* that a run's samples have */

typedef struct dsc_curriculum {
    bool enabled;
    int64_t min_difficulty, max_difficulty;
    int64_t stair[DSC_CURRICULUM_STAIRS_MAX]; /* fixed_discrete: a difficulty, */
    int64_t last_step[DSC_CURRICULUM_STAIRS_MAX]; /* [stair_count - 1] and the last step that has it */
    int stair_count;                          /* 0: fixed_root, of which fixed_linear is the one of degree 1 */
    int64_t total_steps, difficulty_step;
    double root_degree;
} dsc_curriculum;

/* Difficulty of step `step` (from 1); >= 1. */
int64_t dsc_curriculum_difficulty(const dsc_curriculum *curriculum, int64_t step);
/* The tokens of a sample of `longest` in that step. */
int64_t dsc_curriculum_length(const dsc_curriculum *curriculum, int64_t step, int64_t longest);
/* Every length below `longest` that a step may have, ascending and each once, into out[LENGTHS_MAX]. Returns how many
 * there are; above LENGTHS_MAX: too many, and out is not whole. */
int dsc_curriculum_lengths(const dsc_curriculum *curriculum, int64_t longest, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
