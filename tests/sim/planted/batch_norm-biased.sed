# The running variance divided by the rows instead of one less. SPDX-License-Identifier: Apache-2.0
s/static_cast<double>(rows > 1 ? rows - 1 : 1)/static_cast<double>(rows)/
