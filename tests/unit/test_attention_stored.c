/* test_attention_stored.c - places of stored score gradients (kernels/attention.h): each tile that a kernel writes has
 * its own, and a head has no more bytes than these. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kernels/attention.h"

#define TILES_MAX 4096

static int32_t tiles_of(int32_t tokens) { return (int32_t)dsc_div_ceil(tokens, DSC_ATTENTION_STORED_TILE); }

/* Tiles of queries that keys of a piece of 128 see: all of the piece's are written, masked ones too. */
static void check_places(int32_t tokens, bool all)
{
    static bool taken[TILES_MAX];
    const int64_t count = dsc_attention_stored_head_bytes(tokens, all) / DSC_ATTENTION_STORED_TILE_BYTES;
    const int32_t tiles = tiles_of(tokens);
    int64_t found = 0;
    assert_in_range(count, 1, TILES_MAX);
    memset(taken, 0, sizeof taken);
    for (int32_t key = 0; key < 2 * dsc_attention_stored_pieces(tokens); key++)
        for (int32_t query = all ? 0 : key / 2 * 2; query < tiles; query++, found++) {
            const int64_t tile = dsc_attention_stored_tile(tokens, all, key, query);
            assert_in_range(tile, 0, count - 1);
            assert_false(taken[tile]);
            taken[tile] = true;
            /* The queries of a block of dq have adjacent tiles. */
            if (query + 1 < tiles)
                assert_int_equal(dsc_attention_stored_tile(tokens, all, key, query + 1), tile + 1);
        }
    assert_int_equal(found, count);
}

static void each_tile_has_its_place(void **state)
{
    static const int32_t tokens[] = { 1, 63, 64, 65, 128, 129, 192, 193, 420, 1024, 2048 };
    for (size_t i = 0; i < DSC_COUNT(tokens); i++) {
        check_places(tokens[i], true);
        check_places(tokens[i], false);
    }
}

static dsc_attention_fwd_args shape_of(int32_t batch, int32_t tokens, int32_t heads, int32_t kv_heads, int32_t size)
{
    return (dsc_attention_fwd_args) { .batch = batch,
                                      .tokens = tokens,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_size = size,
                                      .scale = 0.125f,
                                      .dtype = DSC_BF16 };
}

/* As many heads as keep a large GPU busy, in whole groups that share keys, and no more than there are. */
static void room_is_for_whole_groups_of_heads(void **state)
{
    const int64_t most = INT64_C(512) << 20, head = dsc_attention_stored_head_bytes(1024, false);
    dsc_attention_fwd_args a = shape_of(32, 1024, 12, 12, 64);
    assert_int_equal(head, 72 * 2 * DSC_ATTENTION_STORED_TILE_BYTES);
    assert_int_equal(dsc_attention_stored_bytes(&a, most), 64 * head); /* of 8 pieces each */
    assert_int_equal(dsc_attention_stored_bytes(&a, 10 * head - 1), 9 * head);
    assert_int_equal(dsc_attention_stored_bytes(&a, head - 1), 0);
    assert_int_equal(dsc_attention_stored_bytes(&a, 0), 0); /* a CPU's contexts */
    a = shape_of(1, 1024, 12, 12, 64);
    assert_int_equal(dsc_attention_stored_bytes(&a, most), 12 * head);
    a = shape_of(8, 1024, 32, 8, 128);
    assert_int_equal(dsc_attention_stored_bytes(&a, most), 64 * 4 * head);
    assert_int_equal(dsc_attention_stored_bytes(&a, 11 * head), 8 * head);
}

static void other_shapes_have_no_room(void **state)
{
    const int64_t most = INT64_C(1) << 40;
    for (int i = 0; i < 6; i++) {
        dsc_attention_fwd_args a = shape_of(2, 256, 4, 4, i == 0 ? 32 : i == 1 ? 200 : 64);
        a.dtype = i == 2 ? DSC_F32 : DSC_BF16;
        a.logits.softcap = i == 3 ? 30 : 0;
        a.keys.all = i == 4, a.keys.window = i >= 4 ? 100 : 0; /* windows of causal attention have kernels */
        assert_int_equal(dsc_attention_stored_bytes(&a, most) > 0, i == 5);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_has_its_place),
        cmocka_unit_test(room_is_for_whole_groups_of_heads),
        cmocka_unit_test(other_shapes_have_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
