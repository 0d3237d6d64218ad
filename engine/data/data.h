/* data.h - token files as samples, in the order of the contract, read ahead by a background thread.
 *
 * A file has n = floor((tokens - 1) / T) samples. Sample i is tokens i*T .. i*T+T-1, with the targets one token later;
 * no sample crosses a file. Files follow each other in the config's order. token_file.h has the kinds of files. Files
 * that are shorter than a sample are joined to one, at the place of the first of them; files of another weight, to
 * another one.
 *
 * Order: global sample g of the run is sample perm_e[g mod n] of epoch e = g div n. The permutation is keyed by
 * (seed, e), and is the identity without shuffling.
 *
 * Weights: a file of weight w counts floor(w * its samples) samples in n. Each sample appears floor(w) times. The
 * remainder are the first samples of the epoch's permutation (of the file, without shuffling).
 *
 * Documents: a file stores documents one after the other with their end token, which is learned like any token. A
 * sample may begin and end inside a document, and attends over borders. If the end token is configured, or a Megatron
 * index marks the ends, a sample has the position of each token in its document. The sample's first token has position
 * 0.
 *
 * Samples: a *.samples file (sft/sample_file.h) holds whole samples of T tokens. Their targets are -1 where a token
 * does not count, and their positions are those in the examples of a sample.
 *
 * Pairs: the files' samples 2 i and 2 i + 1 are the chosen and the rejected one of a preference. Order, weights and
 * epochs are those of pairs, of which each is two samples of the run, so that a micro-batch of an even size has whole
 * pairs. The third batch tensor is the reference's log-probability of each sample. Rows whose texts are compared stay
 * together in the same way, each with as many samples as it has texts. SPDX-License-Identifier: Apache-2.0
 */
#ifndef DSC_ENGINE_DATA_DATA_H
#define DSC_ENGINE_DATA_DATA_H

#include <dsc/dsc.h>

#include "base/quota.h"
#include "engine/data/curriculum.h"
#include "engine/data/masking.h"
#include "engine/data/sft/sft.h"
#include "engine/data/skips.h"
#include "engine/data/token_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_data dsc_data;

typedef struct dsc_data_options {
    dsc_alloc *alloc; /* borrowed until close */
    const dsc_io *io;
    const char *const *paths;
    const char *const *names; /* [path_count] the user's files, for messages; NULL: the paths */
    int32_t path_count;
    const double *weights; /* [path_count] how often each file comes in an epoch; NULL: each once */
    int64_t sequence;   /* T */
    int64_t vocab_size; /* a token id at or above it is DSC_ERR_INPUT with file and position */
    dsc_masking masking;
    bool documents;       /* places are asked for */
    int32_t document_end; /* the token that ends one */
    bool shuffle;
    uint64_t seed;
    bool pairs; /* every file has pairs of preferences; false: none has */
    dsc_labels labels; /* the model's labels, which the samples of every file have */
} dsc_data_options;

/* Missing, truncated or not regular files, and too few tokens for a sample in all: DSC_ERR_INPUT. Nothing is read
 * ahead. At most DSC_DATA_FILES_OPEN files stay open; others are opened again when a sample is read from them. */
#define DSC_DATA_FILES_OPEN 256
DSC_MUST_USE dsc_status dsc_data_open(const dsc_data_options *options, dsc_data **out, dsc_error *err);
void dsc_data_close(dsc_data **data);
/* Checks the first *bytes of the files, in their order, through `buffer`. DSC_ERR_INPUT: an id is not below the
 * vocabulary size; the error has the position of the first such id. *bytes <- unused rest. One rank of a host checks as
 * many bytes before the first step as one second reads at SATA speed (0.1 s from memory). The background reader checks
 * later bytes when it reads them; `dsc check --kind tokens-* --vocab-size V` checks whole files. Files that cannot hold
 * such an id (text with a vocabulary of 256, uint16 with 65536) are not read. */
#define DSC_DATA_SCAN_BYTES (INT64_C(256) << 20)
DSC_MUST_USE dsc_status dsc_data_scan(dsc_data *data, dsc_data_buffer buffer, int64_t *bytes, dsc_error *err);
int64_t dsc_data_sample_count(const dsc_data *data); /* n over all files */
int64_t dsc_data_token_count(const dsc_data *data);
/* Samples that stay together: 2 of a pair, those of a row whose texts are compared, else 1. A micro-batch has whole
 * ones. */
int64_t dsc_data_unit(const dsc_data *data);
bool dsc_data_masks_targets(const dsc_data *data); /* a target may be -1; those of a token file are tokens */
/* Pairs alone. The reference of a sample: its log-probability, and a hash of the sample that was seen. */
typedef struct dsc_data_reference {
    double log_probability;
    uint64_t hash;
} dsc_data_reference;
int64_t dsc_data_stored_count(const dsc_data *data); /* samples in all files, each once */
/* Source of stored samples in the order of the files, with references of 0; borrowed from `data`. */
dsc_data_source dsc_data_stored_source(dsc_data *data);
/* The hash of a sample that the source above has filled. */
uint64_t dsc_data_hash(const dsc_data *data, const int32_t *tokens, const int32_t *targets);
/* References of all stored samples, borrowed until close. Before this call dsc_data_as_source fails; later a sample
 * with another hash is DSC_ERR_INPUT. Not while a reader reads. */
void dsc_data_set_references(dsc_data *data, const dsc_data_reference *references);
/* Files that were shorter than a sample, and what became of them. */
typedef struct dsc_data_short {
    int64_t joined, left_out, empty;                         /* numbers of files */
    const char *first_joined, *first_left_out, *first_empty; /* names of the first ones; NULL: none */
} dsc_data_short;
dsc_data_short dsc_data_short_files(const dsc_data *data);
/* Source of batches, borrowed from `data`. Batch tensors, int32: 0 tokens [T], 1 targets [T], and with documents 2
 * positions [T]. With masking 1 is targets [K] and 2 the predicted positions [K]. With labels they are those of
 * dsc_labels. */
dsc_data_source dsc_data_as_source(dsc_data *data);
/* Where a sample of the run is stored, for messages; from any thread. */
typedef struct dsc_data_place {
    const char *file;   /* the user's name, borrowed until close */
    int64_t first, last; /* tokens of the file, or packed samples of it */
    bool packed;
} dsc_data_place;
dsc_data_place dsc_data_place_of(const dsc_data *data, int64_t sample);
/* Validates one token file as the programs would open it, for `dsc check`; vocab_size 0: unknown, else every id of the
 * file is read. */
DSC_MUST_USE dsc_status dsc_data_check(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_token_kind kind,
                                       int64_t vocab_size, int64_t *token_count, dsc_error *err);

/* Bytes of `samples` samples of the model's batch tensor i, unaligned. */
int64_t dsc_batch_tensor_bytes(const dsc_model *model, int64_t samples, int32_t i);
/* The batch tensor of targets, where the model accepts masked ones; -1: no target can be masked. */
int32_t dsc_batch_targets(const dsc_model *model);
/* Every id of the int32 tensors of a model with a vocabulary is inside it, and places in documents are such. Targets
 * may also be -1 or -100 where the model accepts masked ones. */
DSC_MUST_USE dsc_status dsc_batch_check(const dsc_model *model, int64_t samples, const void *const *batch_data,
                                        dsc_error *err);
/* How many of the first `count` targets of a checked batch are not masked. */
int64_t dsc_batch_counted(const dsc_model *model, int64_t count, const void *const *batch_data);

/* This rank's micro-batches, in order, read ahead by one thread into `depth` buffers. A step has K micro-batches of M
 * samples, and the quota (base/quota.h) numbers those of this rank. Micro-batch k of optimizer step s, both from 0, has
 * the samples from s*K*M + k*M on. */
typedef struct dsc_reader dsc_reader;

typedef struct dsc_reader_options {
    dsc_alloc *alloc;
    struct dsc_device *device; /* the buffers are its PINNED memory */
    dsc_data_source source;
    const dsc_model *model;
    int64_t micro_batch;        /* M */
    dsc_quota quota;            /* a list is borrowed until close, or another quota */
    int32_t rank;
    int32_t depth;              /* buffers, >= 2 */
    const dsc_curriculum *curriculum; /* borrowed until close; samples come cut to a step's length. NULL: whole */
    bool waits;                       /* reads nothing before the first seek */
} dsc_reader_options;

/* Bytes of its buffers (tag DATA), for the plan. */
int64_t dsc_reader_plan_bytes(const dsc_reader_options *options);
/* Starts reading at optimizer step `first_step` (from 0). */
DSC_MUST_USE dsc_status dsc_reader_open(const dsc_reader_options *options, int64_t first_step, dsc_reader **out,
                                        dsc_error *err);
void dsc_reader_close(dsc_reader **reader);
/* The next micro-batch: batch_data[i] is the model's batch tensor i with M samples, valid until it is released: at
 * most `depth` are out. `counted` is the number of its targets that are not masked. A failed fill comes out here, in
 * its place. `wait_ns` (may be NULL) grows by the time spent waiting. */
DSC_MUST_USE dsc_status dsc_reader_next(dsc_reader *reader, const void *const **batch_data, int64_t *counted,
                                        int64_t *wait_ns, dsc_error *err);
/* Releases a batch that was read, so that the reader may fill its buffer again. */
void dsc_reader_release(dsc_reader *reader);
/* Continues with optimizer step `step`, micro-step 0, and that quota. Batches that are out are released. */
DSC_MUST_USE dsc_status dsc_reader_set_quota(dsc_reader *reader, const dsc_quota *quota, int64_t step, dsc_error *err);
/* Continues with optimizer step `step`, micro-step 0, and leaves out the batches of `skips`, which are copied: after a
 * load, or before a step that is repeated. */
DSC_MUST_USE dsc_status dsc_reader_seek(dsc_reader *reader, int64_t step, const dsc_skips *skips, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
