/* save.h - one save on its way: what it writes, planned before anything is written, and its phases. All
 * ranks do each phase and then agree (dsc_ckpt_agree).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_CHECKPOINT_SAVE_H
#define DSC_ENGINE_CHECKPOINT_SAVE_H

#include <stdatomic.h>

#include "engine/checkpoint/hosts.h"
#include "engine/checkpoint/writer.h"

typedef struct dsc_ckpt_save_state {
    const dsc_ckpt_ctx *c;        /* borrowed */
    const dsc_run_state *state;   /* borrowed */
    dsc_ckpt_hosts hosts;
    dsc_ckpt_commit commit;
    dsc_ckpt_entries entries;
    dsc_safetensors_plan
        plan[DSC_CKPT_TENSOR_FILE_COUNT]; /* plan of this folder; with a part only, of its files */
    dsc_ckpt_writer writer;
    dsc_ckpt_file_info info[DSC_CKPT_FILE_COUNT];
    char *buffers; /* buffers.safetensors with the values of the save's start; NULL: none */
    int64_t buffers_bytes;
    char *model_config; /* config.json with the dtype of the saved weights; NULL: none */
    dsc_ckpt_companion_list companions;
    int64_t *first_block; /* [W + 1] where each rank's blocks start in a list of all */
    dsc_ckpt_block *block; /* this rank's */
    /* The first rank of each folder: */
    dsc_ckpt_block *all, *sorted; /* every rank's, in order of ranks and in order of tensors */
    int64_t *first_of_entry;
    int32_t *part_of; /* [sorted] where there are several folders */
} dsc_ckpt_save_state;

/* Whatever can be known before a byte is written: what lies where, and that it can be read back. *out is owned by the
 * caller, also after a failure (NULL: no memory). */
dsc_status dsc_ckpt_save_open(const dsc_ckpt_ctx *c, const char *dir, const dsc_run_state *state, int64_t resumed_step,
                              dsc_ckpt_save_state **out, dsc_error *err);
dsc_status dsc_ckpt_save_plan(dsc_ckpt_save_state *s, dsc_error *err);
void dsc_ckpt_save_close(dsc_ckpt_save_state **save);
/* The model's config.json and the run's ds_config.json, in the order of dsc_ckpt_file; NULL: there is none. */
const char *dsc_ckpt_save_text(const dsc_ckpt_save_state *s, dsc_ckpt_file f, int64_t *bytes);
/* Whether this rank makes and commits its folder. */
bool dsc_ckpt_save_leads(const dsc_ckpt_save_state *s);
/* It, when `all` is filled: `sorted`, by tensor and position. */
void dsc_ckpt_save_sort(dsc_ckpt_save_state *s);
/* Parts in its manifest; NULL: the folder has everything. `out` is where it is put. */
const dsc_ckpt_parts *dsc_ckpt_save_parts(const dsc_ckpt_save_state *s, dsc_ckpt_parts *out);

/* ---- this rank's slices ---- */

/* Some of this rank's blocks, one after another, in memory. Neighbours in a file are neighbours here too, and
 * every address has its file offset's remainder by DSC_AIO_ALIGN. */
typedef struct dsc_ckpt_portion {
    char *buffer; /* a multiple of DSC_AIO_ALIGN */
    int64_t bytes;
    int64_t first, count; /* blocks */
    int64_t carried;      /* bytes before the first block that the portion before left to this one */
    int64_t carries;      /* bytes at the end that this one leaves to the next, so that both write whole blocks */
    int64_t writes;       /* writes of the writer, after which the buffer is free */
} dsc_ckpt_portion;

int64_t dsc_ckpt_block_count(const dsc_ckpt_save_state *s); /* this rank's */
/* As many blocks from p->first on as fit. */
void dsc_ckpt_portion_plan(const dsc_ckpt_save_state *s, dsc_ckpt_portion *p);
/* Copies and hashes blocks: those that lie where another thread may read them too, or the others. Hashes of a device
 * that the host cannot reach come later: dsc_ckpt_portion_hash then, after a wait for the stream. */
dsc_status dsc_ckpt_portion_fetch(dsc_ckpt_save_state *s, const dsc_ckpt_portion *p, bool stays, dsc_error *err);
void dsc_ckpt_portion_hash(dsc_ckpt_save_state *s, const dsc_ckpt_portion *p);
/* Starts writing; the buffer stays as it is until p->writes have ended. *stop (may be NULL): no more writes. */
dsc_status dsc_ckpt_portion_write(dsc_ckpt_save_state *s, dsc_ckpt_portion *p, const atomic_bool *stop, dsc_error *err);
/* All of them, by portions of the context's buffer, and durable. */
dsc_status dsc_ckpt_save_slices(dsc_ckpt_save_state *s, dsc_error *err);

/* ---- phases, collective ---- */

/* Which ranks share a folder; first of all. */
dsc_status dsc_ckpt_save_synchronize(dsc_ckpt_save_state *s, dsc_error *err);
/* *kept: the step is the one that this run was loaded from, and there; nothing is to be done. */
dsc_status dsc_ckpt_save_keep(dsc_ckpt_save_state *s, bool *kept, dsc_error *err);
/* Folders and files are made. */
dsc_status dsc_ckpt_save_begin(dsc_ckpt_save_state *s, dsc_error *err);
/* The first rank of each folder gets every rank's hashes. */
dsc_status dsc_ckpt_save_collect(dsc_ckpt_save_state *s, dsc_error *err);

/* Not collective: stage 0, 1, ... of the commit, which is the first rank's of each folder; others do nothing. Before
 * the next stage all ranks agree. One folder has one stage. With several, each is prepared before one has its name, all
 * have it before one is announced, and nothing older goes before all are. So whatever is cut short, some step is whole
 * on all hosts. */
int dsc_ckpt_save_stages(const dsc_ckpt_save_state *s);
dsc_status dsc_ckpt_save_commit(dsc_ckpt_save_state *s, int stage, dsc_error *err);
/* The agreement. */
dsc_status dsc_ckpt_save_agree(dsc_ckpt_save_state *s, int stage, dsc_status mine, const dsc_error *my_error,
                               dsc_error *err);
/* Not collective: whether a save that is given up in the middle of this stage may be undone; `done`: the stage has come
 * to its end here. */
bool dsc_ckpt_save_undoes(const dsc_ckpt_save_state *s, int stage, bool done);
/* After a failure: what was done is undone, and ranks wait for it. */
void dsc_ckpt_save_undo(dsc_ckpt_save_state *s);

#endif
