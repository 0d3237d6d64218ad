/* io_fault.h - the n-th block of asynchronous files fails, through dsc_aio_hook: every kind of failure, on any engine.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_IO_FAULT_H
#define DSC_TESTS_IO_FAULT_H

#include <stdatomic.h>

#include "offload/aio.h"

typedef enum io_fault_kind {
    IO_FAULT_EIO, IO_FAULT_ENOSPC, IO_FAULT_EINTR, IO_FAULT_EAGAIN, IO_FAULT_SHORT_BY_ONE, IO_FAULT_SHORT_HALF,
    IO_FAULT_REFUSED, IO_FAULT_LATE, IO_FAULT_NEVER, IO_FAULT_KINDS
} io_fault_kind;

typedef struct io_fault {
    _Atomic int64_t at; /* from 1, over every engine that has the hook; 0: none fails */
    io_fault_kind kind;
    _Atomic int64_t count; /* blocks so far */
    atomic_bool fired;
} io_fault;

/* `fault` is borrowed as long as the hook is used. */
dsc_aio_hook io_fault_hook(io_fault *fault);
/* Status of an operation with the fault, and a part of its message; DSC_OK: the operation continues. */
dsc_status io_fault_status(io_fault_kind kind);
const char *io_fault_message(io_fault_kind kind);
const char *io_fault_text(io_fault_kind kind);

#endif
