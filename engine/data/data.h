/* data.h - token files as samples, in the order that the contract fixes, read ahead by a background thread.
 *
 * A file has n = floor((tokens - 1) / T) samples; sample i is tokens i*T .. i*T+T-1 with targets one later; none
 * crosses a file. Files follow each other in the given order. Global sample g of the run is sample perm_e[g mod n] of
 * epoch e = g div n, perm keyed by (seed, e); identity without shuffling. With weights n counts a file of weight w as
 * floor(w * its samples) of them: all of them floor(w) times, then, for the rest, those that a permutation of the epoch
 * brings first (the file's first ones without shuffling). token_file.h has the kinds of files. Documents within a file
 * follow each other with what separates them, which is learned like any token: a sample may begin and end inside one
 * and attends over the borders between them, unless the token that ends one is told: then a sample comes with its
 * tokens' places in their documents, the first of which begins with it; a Megatron index ends documents too.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_DATA_H
#define DSC_ENGINE_DATA_DATA_H

#include <dsc/dsc.h>

#include "engine/data/curriculum.h"
#include "engine/data/masking.h"
#include "engine/data/token_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_data dsc_data;

typedef struct dsc_data_options {
    dsc_alloc *alloc; /* borrowed until close */
    const dsc_io *io;
    const char *const *paths;
    int32_t path_count;
    const double *weights; /* [path_count] how often each file comes in an epoch; NULL: each once */
    int64_t sequence;   /* T */
    int64_t vocab_size; /* a token id at or above it is DSC_ERR_INPUT with file and position */
    dsc_masking masking;
    bool documents;       /* places are asked for */
    int32_t document_end; /* the token that ends one */
    bool shuffle;
    uint64_t seed;
} dsc_data_options;

/* Missing, empty, truncated, not regular or too short files: DSC_ERR_INPUT. Files stay open, nothing is read ahead. */
DSC_MUST_USE dsc_status dsc_data_open(const dsc_data_options *options, dsc_data **out, dsc_error *err);
void dsc_data_close(dsc_data **data);
/* Ids above the vocabulary in the first *bytes of the files, in their order: DSC_ERR_INPUT with the first one's place.
 * *bytes becomes what is left. Reads through `buffer`. The engine does this on one rank of a host
 * before the first step, as far as about a second reads (half a second from a SATA SSD, 0.1 s from memory). What lies
 * behind is checked when it is read, by the background reader; `dsc check --kind tokens-* --vocab-size V` reads whole
 * files. Files that cannot hold such an id (text with a vocabulary of 256, uint16 with 65536) are not read. */
#define DSC_DATA_SCAN_BYTES (INT64_C(256) << 20)
DSC_MUST_USE dsc_status dsc_data_scan(dsc_data *data, dsc_data_buffer buffer, int64_t *bytes, dsc_error *err);
int64_t dsc_data_sample_count(const dsc_data *data); /* n over all files */
int64_t dsc_data_token_count(const dsc_data *data);
/* A source whose batch tensor 0 is tokens [T], 1 is targets [T] and, with documents, 2 is positions [T], int32; with
 * masking 1 is targets [K] and 2 predicted [K].
 * Borrowed from `data`. */
dsc_data_source dsc_data_as_source(dsc_data *data);
/* Validates one token file as the programs would open it, for `dsc check`; vocab_size 0: unknown, else every id of the
 * file is read. */
DSC_MUST_USE dsc_status dsc_data_check(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_token_kind kind,
                                       int64_t vocab_size, int64_t *token_count, dsc_error *err);

/* Every id of the int32 tensors of a model with a vocabulary is inside it, and places in documents are such. */
DSC_MUST_USE dsc_status dsc_batch_check(const dsc_model *model, int64_t samples, const void *const *batch_data,
                                        dsc_error *err);

/* This rank's micro-batches, in order, read ahead by one thread into `depth` buffers. Micro-step m of optimizer step s
 * (both from 0 here) is samples s*B + (m*W + rank)*M .. + M - 1, with B = GAS*W*M: the leaf m*W + rank. */
typedef struct dsc_reader dsc_reader;

typedef struct dsc_reader_options {
    dsc_alloc *alloc;
    struct dsc_device *device; /* the buffers are its PINNED memory */
    dsc_data_source source;
    const dsc_model *model;
    int64_t micro_batch;        /* M */
    int64_t accumulation_steps; /* GAS */
    int32_t rank, world_size;
    int32_t depth;              /* buffers, >= 2 */
    const dsc_curriculum *curriculum; /* borrowed until close; samples come cut to a step's length. NULL: whole */
} dsc_reader_options;

/* Bytes of its buffers (tag DATA), for the plan. */
int64_t dsc_reader_plan_bytes(const dsc_reader_options *options);
/* Starts reading at optimizer step `first_step` (from 0). */
DSC_MUST_USE dsc_status dsc_reader_open(const dsc_reader_options *options, int64_t first_step, dsc_reader **out,
                                        dsc_error *err);
void dsc_reader_close(dsc_reader **reader);
/* The next micro-batch: batch_data[i] is the model's batch tensor i with M samples, valid until it is released: at
 * most `depth` are out. A failed fill comes out here, in its place. `wait_ns` (may be NULL) grows by the time spent
 * waiting. */
DSC_MUST_USE dsc_status dsc_reader_next(dsc_reader *reader, const void *const **batch_data, int64_t *wait_ns,
                                        dsc_error *err);
/* What has come is read and may be filled again. */
void dsc_reader_release(dsc_reader *reader);
/* Continues with optimizer step `step`, micro-step 0: after a load. */
DSC_MUST_USE dsc_status dsc_reader_seek(dsc_reader *reader, int64_t step, dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
