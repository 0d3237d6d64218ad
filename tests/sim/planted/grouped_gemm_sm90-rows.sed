# Gradients of weights that add the next expert's rows. SPDX-License-Identifier: Apache-2.0
/^ *clear_rows(r.a(turn), left);/d
