/* io_fault.c - see io_fault.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/io_fault.h"

#include <errno.h>

static const struct {
    const char *text, *message;
    dsc_status status;
} kinds[IO_FAULT_KINDS] = {
    [IO_FAULT_EIO] = { "EIO", "Input/output error", DSC_ERR_IO },
    [IO_FAULT_ENOSPC] = { "ENOSPC", "No space left", DSC_ERR_IO },
    [IO_FAULT_EINTR] = { "EINTR", "", DSC_OK },
    [IO_FAULT_EAGAIN] = { "EAGAIN", "", DSC_OK },
    [IO_FAULT_SHORT_BY_ONE] = { "short by one", "", DSC_OK },
    [IO_FAULT_SHORT_HALF] = { "short by half", "", DSC_OK },
    [IO_FAULT_REFUSED] = { "refused", "", DSC_OK },
    [IO_FAULT_LATE] = { "late", "", DSC_OK },
    [IO_FAULT_NEVER] = { "never", "no answer", DSC_ERR_STUCK },
};

dsc_status io_fault_status(io_fault_kind kind) { return kinds[kind].status; }
const char *io_fault_message(io_fault_kind kind) { return kinds[kind].message; }
const char *io_fault_text(io_fault_kind kind) { return kinds[kind].text; }

static dsc_aio_fault_kind before(void *user, int64_t n, const dsc_aio_piece *piece, int64_t *result)
{
    (void)n;
    io_fault *fault = user;
    if (atomic_fetch_add(&fault->count, 1) + 1 != atomic_load(&fault->at))
        return DSC_AIO_FAULT_NONE;
    atomic_store(&fault->fired, true);
    switch (fault->kind) {
    case IO_FAULT_EIO: *result = -EIO; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_ENOSPC: *result = -ENOSPC; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_EINTR: *result = -EINTR; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_EAGAIN: *result = -EAGAIN; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_SHORT_BY_ONE: *result = piece->bytes - 1; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_SHORT_HALF: *result = piece->bytes / 2; return DSC_AIO_FAULT_RESULT;
    case IO_FAULT_REFUSED: return DSC_AIO_FAULT_REFUSE;
    case IO_FAULT_LATE: return DSC_AIO_FAULT_LATE;
    case IO_FAULT_NEVER: return DSC_AIO_FAULT_NEVER;
    case IO_FAULT_KINDS: break;
    }
    DSC_ASSERT(false);
    return DSC_AIO_FAULT_NONE;
}

dsc_aio_hook io_fault_hook(io_fault *fault) { return (dsc_aio_hook){ before, fault }; }
