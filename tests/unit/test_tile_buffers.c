/* test_tile_buffers.c - tile buffers before swap space: pieces are read as they were written, round after round. A long
 * round uses each further slot once; then the slot's memory belongs to its owner again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/tile_buffers.h"

enum { PAGE = DSC_AIO_ALIGN, PIECES = 24, OWN = 3, FURTHER = 5 };

static dsc_alloc *alloc;
static dsc_aio *aio;
static dsc_swap *swap;
static dsc_tile_buffers ring;
static char dir[128];
static const char *const folders[] = { dir };
static unsigned char *own_buf, *further_buf;
static int32_t next_piece; /* that is read ahead */

static void check(dsc_status status, const dsc_error *err)
{
    if (status != DSC_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static dsc_piece piece_of(int32_t i) { return (dsc_piece) { (int64_t)(i % PIECES) * PAGE, PAGE }; }

/* The contents of a piece after that many rounds through swap space. */
static unsigned char byte_of(int32_t i, int32_t round) { return (unsigned char)(1 + i % PIECES + 40 * round); }

static int setup(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    snprintf(dir, sizeof dir, "%s/dsc-ring-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(dir) == NULL)
        return -1;
    own_buf = aligned_alloc(PAGE, OWN * PAGE);
    further_buf = aligned_alloc(PAGE, FURTHER * PAGE);
    check(dsc_alloc_open(&alloc, &err), &err);
    const dsc_aio_options options = { .alloc = alloc,
                                      .engine = "auto",
                                      .block_bytes = PAGE,
                                      .queue_depth = 8,
                                      .thread_count = 1,
                                      .overlap_events = true };
    check(dsc_aio_open(&options, &aio, &err), &err);
    const dsc_swap_options place = {
        .alloc = alloc, .aio = aio, .tag = DSC_TAG_MASTER, .folders = folders, .folder_count = 1, .bytes = PIECES * PAGE
    };
    check(dsc_swap_open(&place, &swap, &err), &err);
    ring = (dsc_tile_buffers) { .read_ahead = true, .write_behind = true, .further_count = FURTHER };
    check(dsc_tile_buffers_open(&ring, alloc, swap, aio, own_buf, PAGE, OWN, &err), &err);
    dsc_tile_buffers_assign(&ring, OWN, FURTHER, further_buf, PAGE);
    for (int32_t i = 0; i < PIECES; i++) {
        const int32_t slot = dsc_tile_buffers_next(&ring);
        check(dsc_tile_buffers_start(&ring, slot, piece_of(i), false, &err), &err);
        memset(ring.slot[slot].buf, byte_of(i, 0), PAGE);
        check(dsc_tile_buffers_write_back(&ring, slot, piece_of(i), &err), &err);
    }
    check(dsc_tile_buffers_drain(&ring, &err), &err);
    next_piece = 0;
    return 0;
}

static int teardown(void **state)
{
    dsc_tile_buffers_stop(&ring);
    dsc_aio_close(&aio);
    dsc_swap_close(&swap);
    dsc_tile_buffers_close(&ring);
    dsc_alloc_close(&alloc); /* asserts that nothing is live */
    free(own_buf);
    free(further_buf);
    return rmdir(dir);
}

/* As much as there is room for; how many pieces are ahead then. */
static int32_t read_ahead(int32_t end)
{
    dsc_error err = DSC_ERROR_INIT;
    bool started = true;
    while (next_piece < end && started) {
        check(dsc_tile_buffers_prefetch(&ring, piece_of(next_piece), false, &started, &err), &err);
        next_piece += started;
    }
    return ring.ahead;
}

/* Until no more comes, whatever is under way. */
static int32_t read_all_ahead(int32_t end)
{
    int32_t before = -1, now;
    while ((now = read_ahead(end)) != before || (dsc_aio_pump(aio, 1000000) && next_piece < end))
        before = now;
    return now;
}

/* The piece comes, has what it should, and goes with what the next round finds. The slot that it was in. */
static int32_t pass(int32_t i, int32_t round)
{
    dsc_error err = DSC_ERROR_INIT;
    const int32_t slot = dsc_tile_buffers_next(&ring);
    next_piece += ring.ahead == 0;
    check(dsc_tile_buffers_start(&ring, slot, piece_of(i), true, &err), &err);
    check(dsc_tile_buffers_acquire(&ring, slot, &err), &err);
    const unsigned char *buf = ring.slot[slot].buf;
    for (int32_t k = 0; k < PAGE; k++)
        assert_int_equal(buf[k], byte_of(i, round));
    memset(ring.slot[slot].buf, byte_of(i, round + 1), PAGE);
    assert_false(dsc_tile_buffers_has_passed(&ring, slot));
    check(dsc_tile_buffers_write_back(&ring, slot, piece_of(i), &err), &err);
    return slot;
}

static void begin_round(int32_t end)
{
    dsc_error err = DSC_ERROR_INIT;
    check(dsc_tile_buffers_begin_round(&ring, end, &err), &err);
}

static void pieces_pass_round_after_round(void **state)
{
    for (int32_t i = 0; i < 3 * PIECES; i++) {
        assert_in_range(read_all_ahead(3 * PIECES), 1, OWN - 1);
        assert_int_equal(pass(i, i / PIECES), i % OWN);
    }
}

/* Whatever its length: slots behind its own are read to at once, passed once, and then left alone. */
static void a_long_round_comes_to_further_slots_once(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    for (int32_t end = OWN; end <= OWN + FURTHER; end++) {
        const int32_t round = end - OWN, rest = PIECES - end;
        begin_round(end);
        next_piece = 0;
        for (int32_t slot = OWN; slot < end; slot++)
            assert_false(dsc_tile_buffers_has_passed(&ring, slot));
        assert_int_equal(read_all_ahead(PIECES), end); /* nothing is worked on: all of them */
        for (int32_t i = 0; i < end; i++) {
            assert_int_equal(pass(i, round), i);
            assert_in_range(read_all_ahead(PIECES), 1, end);
        }
        assert_int_equal(ring.ahead, end > OWN ? OWN : OWN - 1);
        check(dsc_tile_buffers_drain(&ring, &err), &err);
        for (int32_t slot = OWN; slot < OWN + FURTHER; slot++)
            assert_true(dsc_tile_buffers_has_passed(&ring, slot));
        memset(further_buf, 0xee, FURTHER * PAGE); /* it is not the ring's any more */
        for (int32_t i = 0; i < rest; i++) {
            assert_int_equal(pass(end + i, round), i % OWN);
            (void)read_all_ahead(PIECES);
        }
        for (int32_t i = 0; i < FURTHER * PAGE; i++)
            assert_int_equal(further_buf[i], 0xee);
        check(dsc_tile_buffers_drain(&ring, &err), &err);
    }
}

/* Then the prefetched pieces are read once more. */
static void a_long_round_ends_anywhere(void **state)
{
    dsc_error err = DSC_ERROR_INIT;
    for (int32_t passed = 0; passed <= OWN + FURTHER + 1; passed++) {
        begin_round(OWN + FURTHER);
        next_piece = 0;
        for (int32_t i = 0; i < passed; i++) {
            (void)read_all_ahead(PIECES);
            assert_int_equal(pass(i, passed), i % (OWN + FURTHER));
        }
        (void)read_all_ahead(PIECES);
        check(dsc_tile_buffers_end_round(&ring, &err), &err);
        assert_int_equal(ring.ahead, passed < OWN + FURTHER ? 0 : passed == OWN + FURTHER ? OWN : OWN - 1);
        for (int32_t slot = OWN; slot < OWN + FURTHER; slot++)
            assert_true(dsc_tile_buffers_has_passed(&ring, slot));
        memset(further_buf, 0xee, FURTHER * PAGE);
        next_piece = passed;
        for (int32_t i = passed; i < PIECES; i++)
            assert_in_range(pass(i, passed), 0, OWN - 1);
        for (int32_t i = 0; i < FURTHER * PAGE; i++)
            assert_int_equal(further_buf[i], 0xee);
        check(dsc_tile_buffers_drain(&ring, &err), &err);
    }
}

/* A wait for other files waits for at most a short round of these. */
static void no_more_than_its_own_are_read_at_a_time(void **state)
{
    begin_round(OWN + FURTHER);
    next_piece = 0;
    for (int32_t pieces = 0; pieces < OWN + FURTHER; pieces = read_ahead(PIECES)) {
        int32_t under_way = 0;
        for (int32_t slot = 0; slot < OWN + FURTHER; slot++)
            under_way += ring.slot[slot].state == DSC_SLOT_READING && !dsc_swap_test(ring.slot[slot].op);
        assert_in_range(under_way, 0, OWN);
        (void)dsc_aio_pump(aio, 1000000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_pass_round_after_round, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_round_comes_to_further_slots_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_round_ends_anywhere, setup, teardown),
        cmocka_unit_test_setup_teardown(no_more_than_its_own_are_read_at_a_time, setup, teardown),
    };
    return cmocka_run_group_tests_name("tile buffers", tests, NULL, NULL);
}
