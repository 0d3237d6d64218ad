/* saves.h - the checkpoints of a run: which one it goes on from, when the next is written, what a failed one means.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_SAVES_H
#define DSC_TOOLS_TRAIN_SAVES_H

#include "progress.h"

typedef struct train_saves {
    dsc_engine *engine;
    const dsc_run_info *info;
    train_progress *progress; /* NULL: another rank tells */
    int64_t saved_step;       /* the last that was announced by this run; -1 */
    int64_t started_step;     /* one that is written while training goes on; -1 */
    int64_t started_ns;
    uint32_t world;         /* number of the world; after the first the run goes on from what it has saved, if
                             * anything. 0: the ranks are fixed */
    int64_t evaluated_step; /* the last with a validation loss; -1 */
    double evaluated_loss, started_loss; /* NaN: the started one has none */
} train_saves;

/* The value of --load. */
dsc_status train_saves_load(train_saves *s, dsc_error *err);
/* Saves a step, or starts to ("dsc".save_async). A failure that the run outlives is a warning. `final`: nothing comes
 * after it that could save this step; it is waited for, and must succeed. */
dsc_status train_saves_save(train_saves *s, int64_t step, bool final, dsc_error *err);
/* The validation loss of the step that was just made: its checkpoint, saved before or later, may be the best one. */
dsc_status train_saves_evaluated(train_saves *s, int64_t step, double loss, dsc_error *err);
/* After the run has gone back: steps that were saved and evaluated are made again. */
void train_saves_forget(train_saves *s);
/* Waits for one that was started, and tells. */
dsc_status train_saves_settle(train_saves *s, dsc_error *err);

#endif
