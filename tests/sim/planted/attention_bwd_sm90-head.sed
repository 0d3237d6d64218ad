# Score gradients of a further head that are stored behind those of the first. SPDX-License-Identifier: Apache-2.0
s/after.row == x.w.row ? x.next_head : 0/0/
