/* modelrun.h - one micro-batch through a model's modules on the cpu device, without an engine.
 *
 * Every buffer has exactly the planned bytes between red zones and is full of NaN before the call that must write it.
 * So a read of unwritten bytes and a write past the plan are found. Read-only inputs are hashed before and after.
 * A broken promise ends the program through DSC_ASSERT. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_MODELRUN_H
#define DSC_TESTS_MODELRUN_H

#include <dsc/model.h>

#include "kernels/device.h"

typedef struct modelrun_options {
    int64_t batch;
    dsc_dtype dtype;
    int32_t threads;
    uint32_t caps;
    bool recompute; /* forward without save, then again with save before each backward */
    bool rebuild;   /* rebuilt values are dropped between forward and backward, and rebuilt */
    bool keep;      /* repeated values are kept */
    bool in_place;  /* d_in is the memory of d_out */
    bool together;  /* parameters lie side by side as in the engine's flat groups, without red zones between them */
    bool joins_input_gradients; /* in the contexts and in the plan's sink */
    float loss_scale;
    int64_t chunk_bytes; /* limit in the contexts and in the plan's sink */
} modelrun_options;

#define MODELRUN_GEMMS_MAX 64

typedef struct modelrun_gemms {
    dsc_gemm_args shape[MODELRUN_GEMMS_MAX]; /* without pointers, each once */
    int count;
} modelrun_gemms;

typedef struct modelrun modelrun;

/* The model is borrowed until close. */
modelrun *modelrun_open(const dsc_model *model, const modelrun_options *options);
void modelrun_close(modelrun *run);

/* A whole parameter from fp32 values, rounded to the compute dtype. Shared ones follow their owner. */
void modelrun_set_param(modelrun *run, int32_t module, int32_t param, const float *values);
void modelrun_set_buffer(modelrun *run, int32_t module, int32_t buffer, const float *values); /* an average's */
/* The micro-batch. Other samples than tokens have 4 bytes an element too. */
void modelrun_set_tokens(modelrun *run, const void *tokens, const int32_t *targets);
void modelrun_set_predicted(modelrun *run, const int32_t *places); /* predicted positions of a masked model */

void modelrun_set_reference(modelrun *run, const double *reference); /* of a preference, [batch] */

/* Forward with save and backward. Returns the mean loss. */
double modelrun_step(modelrun *run);
/* Forward without save. Returns the mean loss. */
double modelrun_evaluate(modelrun *run);
/* logits[vocab_size] of item `row`. */
void modelrun_logits(modelrun *run, int64_t row, float *logits);

const float *modelrun_losses(const modelrun *run); /* [batch * losses_per_sample] */
/* Gradient of one use of a parameter, after modelrun_step; NaN of one that is not trained. */
const float *modelrun_grad(const modelrun *run, int32_t module, int32_t param);
int64_t modelrun_elements(const dsc_param_spec *spec);

/* Planned values of the modules, and launches since open. */
const modelrun_gemms *modelrun_planned(const modelrun *run);
const modelrun_gemms *modelrun_launched(const modelrun *run);
double modelrun_launched_flops(const modelrun *run); /* FLOPs of matrix products since open */

#endif
