/* worlds.h - this rank's part of a job whose ranks leave and join (base/world_channel.h). It has the reports to the
 * launcher, the calls, and the states that the rank carries from one world to the next.
 *
 * A rank waits for a world, opens an engine in it, and trains until the run is done or the world ends. A world ends at
 * a step boundary when ranks leave or join, or within a step when a rank is lost. Then the rank takes its states along
 * (dsc_engine_carry) and waits for the next world. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_TRAIN_WORLDS_H
#define DSC_TOOLS_TRAIN_WORLDS_H

#include <dsc/dsc.h>

#include "base/world_channel.h"

typedef struct train_worlds {
    int fd;               /* the channel; -1: the ranks of the job are fixed */
    int32_t least, most;  /* ranks of the job */
    dsc_world_call now;   /* the current world */
    dsc_carried *carried; /* states for the next world; owned, NULL: none */
    int64_t step;         /* steps done when this rank was in a world last */
    bool called;          /* the launcher wants the world changed */
    bool end_called;      /* the launcher ends the job */
    bool ran;             /* the first step in this world is reported */
} train_worlds;

/* DSC_WORLD_CHANNEL and DSC_WORLD_SIZES of the environment. */
dsc_status train_worlds_open(train_worlds *worlds, dsc_error *err);
void train_worlds_close(train_worlds *worlds); /* safe on a zeroed one */
static inline bool train_worlds_change(const train_worlds *worlds) { return worlds->fd >= 0; }

/* --chaos disk=MS of dsc-launch: a hook that makes file operations slow; NULL: they are as fast as the disk. */
const struct dsc_io *train_worlds_slow_disk(void);
/* Waits for the next world, and puts this rank's place in it into the environment, where an engine that opens reads it.
 * With end_called there is none. */
dsc_status train_worlds_next(train_worlds *worlds, dsc_error *err);
/* Reads calls without waiting. */
void train_worlds_look(train_worlds *worlds);
/* A step is done. */
void train_worlds_stepped(train_worlds *worlds, int64_t step);
/* The last reports of a rank. */
void train_worlds_left(const train_worlds *worlds);
void train_worlds_done(const train_worlds *worlds, bool saved);

/* Collective, at a step boundary. Asks all ranks whether they leave, or know that the job ends. *end: one knows, or all
 * leave; nothing else happens then. Otherwise the engine is closed, and its states are carried or handed over. */
dsc_status train_worlds_part(train_worlds *worlds, dsc_engine **engine, bool leaves, bool *end, dsc_error *err);
/* True for a failure that the loss of a rank explains. */
bool train_worlds_is_loss(const train_worlds *worlds, dsc_status status);
/* After such a failure: closes the engine, if it is open, and keeps the states that are left. `failure` is why. */
void train_worlds_lose(train_worlds *worlds, dsc_engine **engine, const dsc_error *failure);

#endif
