# Grouped products that do not wait for the operands. SPDX-License-Identifier: Apache-2.0
/^ *r.wait_full(turn);/d
