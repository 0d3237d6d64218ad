/* label_loss.h - losses of samples with labels, as PyTorch's losses of these names: cross-entropy of a class, mean
 * squared error of numbers, and binary cross-entropy of a set of classes. Gradients take the place of the logits.
 * reference, the only CPU variant: cpu/label_loss.c   check: tests/checkkern/label_loss.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_LABEL_LOSS_H
#define DSC_KERNELS_LABEL_LOSS_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Row r has logits x[N] and labels y.
 *
 *     class     loss = log(sum_c exp(x_c)) - x_y               d_c = softmax_c - (c == y)
 *     smoothed  (1 - s) class + s / N sum_c (log(sum_k exp(x_k)) - x_c)
 *                                                              d_c = softmax_c - (1 - s) (c == y) - s / N
 *     numbers   loss = sum_c (x_c - y_c)^2 / N                  d_c = 2 (x_c - y_c) / N
 *     set       loss = sum_c (log(1 + exp(x_c)) - x_c y_c) / N  d_c = (sigmoid(x_c) - y_c) / N
 *
 * A class is smoothed if s = smoothing is not 0, as torch.nn.CrossEntropyLoss(label_smoothing = s) has it. With m =
 * mixed above 0 a row of classes also has the label b of the row before. Its loss is (1 - m) loss(y) + m loss(b), as
 * after torchvision's MixUp and CutMix. The row before row 0 has *label_before. Places and marks are those of y. With
 * write_gradient the logits become d * scale, rounded once. A negative class is masked: loss and gradients are 0. With
 * mark_wrong the loss of a row that is predicted wrongly gets a minus sign. Such a row of classes has its largest
 * logit, the first of equal ones, elsewhere. Logits before a label's are the larger ones, and equal ones of a lower
 * class. That of a set has a logit above 0 for a label up to 0.5, or the reverse.
 */
typedef struct dsc_label_loss_args {
    void *logits;                  /* [rows, stride] in the dtype */
    float *losses;                 /* [rows] written */
    const void *labels;            /* class: [rows] int32 below N; else [rows, N] fp32 */
    int64_t rows, classes, stride; /* R, N */
    float scale;                   /* 1 / samples of the micro-batch, times the loss scale */
    float smoothing;               /* class: s, 0..1; 0: none */
    float mixed;                   /* class: m, 0..1; 0: none */
    const int32_t *label_before;   /* class, m above 0: of the row before the first */
    int32_t *places;               /* class: [rows] written: logits before the label's, 0 of a masked row; or NULL */
    bool write_gradient, mark_wrong;
    dsc_label_kind kind;
    dsc_dtype dtype;
} dsc_label_loss_args;

#ifdef __cplusplus
}
#endif
#endif
