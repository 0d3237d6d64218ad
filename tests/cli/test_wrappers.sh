#!/usr/bin/env bash
# test_wrappers.sh - text models inside multimodal folders: the losses of the plain text model, other tensors carried
# into exports byte by byte, refusals; with transformers (DSC_TEST_PYTHON) its own models of eleven kinds.
# SPDX-License-Identifier: Apache-2.0
exec python3 "$(dirname "$0")/wrappers_test.py" "${DSC_BIN:?}"
