/* ckpt_world.h - a script that W ranks run as threads, each with its own engine, and what they have in memory as
 * `dsc ckpt hash` would see it. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_CKPT_WORLD_H
#define DSC_TESTS_CKPT_WORLD_H

#include <stdatomic.h>

#include <dsc/dsc.h>

#define CW_RANKS_MAX 8

/* Ends the program: in a rank's thread, where the test's own assertions cannot be used. */
#define CW_CHECK(condition) ((condition) ? (void)0 : cw_fail(#condition, __FILE__, __LINE__, ""))
#define CW_OK(call, err) \
    ((call) == DSC_OK ? (void)0 : cw_fail(#call, __FILE__, __LINE__, (err)->message))
_Noreturn void cw_fail(const char *what, const char *file, int line, const char *why);

typedef struct cw_options {
    int32_t world, stage;
    int32_t batch; /* samples of a step; 0: 12 */
    bool bf16, bf16_moments;
    const char *files; /* folder for states, and parameters at stage 3, that are in files; NULL: in memory */
    bool own_samples; /* every rank's sums in its own order: bits depend on the world size */
    int64_t seed;     /* 0: 5 */
    bool node_local;    /* ranks may have folders of their own */
    bool async;         /* cw_save starts a save and waits for it */
    const char *aio;    /* engine of long writes; NULL: auto */
    uint32_t caps_mask; /* 0: all */
    uint32_t flags;     /* of dsc_engine_options */
    dsc_model *model;   /* toy_model.h's, or one that learns tokens */
    const char *optimizer; /* NULL: AdamW */
    const char *own, *zero; /* further members of dsc and zero_optimization, each preceded by a comma; NULL: none */
    dsc_log log; /* every rank's warnings */
} cw_options;

struct cw_world;
typedef struct cw_rank {
    struct cw_world *world;
    const cw_options *options;
    int32_t rank;
    dsc_engine *engine;
    void *user;
    dsc_status status;
    dsc_error error;
    double loss[16]; /* losses of cw_train's steps, by step */
} cw_rank;

/* Engines are opened, run and closed; what a script returns is the rank's status. Aborts when a world cannot be made.
 */
typedef dsc_status (*cw_script)(cw_rank *rank, dsc_error *err);
void cw_run(const cw_options *options, cw_script script, void *user, cw_rank ranks[CW_RANKS_MAX]);
/* As cw_run, but aborts when a rank returns a failure. */
void cw_run_well(const cw_options *options, cw_script script, void *user);

/* A script: loads when `load` is not NULL, trains to save_step, saves when `save` is not NULL, trains to end_step. */
typedef struct cw_trip {
    const char *save, *load; /* folders */
    int64_t save_step, end_step;
    double loss[16];
    char saved_hash[65], end_hash[65]; /* in memory, of the two steps */
} cw_trip;
dsc_status cw_make_trip(cw_rank *rank, dsc_error *err); /* rank->user: cw_trip */

/* Inside a script. Collective. */
dsc_status cw_train(cw_rank *rank, int64_t until_step, dsc_error *err);
/* dsc_engine_save, or start and wait: the verdict of either. */
dsc_status cw_save(cw_rank *rank, const char *dir, dsc_error *err);
void cw_barrier(cw_rank *rank);
/* DESIGN section 7 from memory, the same on every rank. */
void cw_hash(cw_rank *rank, char hex[65]);

/* ---- faults: fails the n-th file operation of a rank, once or from then on; n = 0 only counts ---- */
typedef struct cw_fault {
    atomic_llong count;
    int64_t n;
    int64_t again; /* fails the one that comes so many later too; 0: none */
    bool persistent;
    int errno_value;
    atomic_bool fired;
} cw_fault;
void cw_fault_arm(cw_rank *rank, cw_fault *fault); /* NULL: none */

/* ---- folders ---- */

char *cw_tmp_open(void); /* a new folder; owned, cw_tmp_close */
/* In memory where there is room for small files: for thousands of fsyncs. */
char *cw_memory_tmp_open(void);
void cw_tmp_close(char *dir);
char *cw_path(const char *dir, const char *name); /* owned by a ring of 16 */
void cw_remove(const char *path);                 /* with everything in it; links are not followed */
void cw_copy_dir(const char *from, const char *to); /* one level of plain files */
char *cw_read(const char *path, size_t *bytes);   /* free() it; aborts when it is not there */
void cw_write(const char *path, const void *data, size_t bytes);
bool cw_exists(const char *path);                 /* a dangling link too */
/* The `dsc ckpt hash` of one that verifies; aborts otherwise. */
void cw_hash_of(const char *step_dir, char hex[65]);
/* Aborts unless it verifies and has this `dsc ckpt hash`. */
void cw_expect_checkpoint(const char *step_dir, const char hex[65]);
/* The N of dir/latest, which must be "step-N\n" and nothing else; -1: there is none. */
int64_t cw_latest(const char *dir);

#endif
