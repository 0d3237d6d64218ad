# Attention by warpgroups that does not wait for the keys of all tiles but the first. SPDX-License-Identifier: Apache-2.0
/^        at.k.wait_full(turn);/d
