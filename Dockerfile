# Dockerfile - dsc on Debian 12. With GPUs: --build-arg BUILD_IMAGE=(CUDA's devel image of Debian 12 or Ubuntu 24.04) --build-arg
# RUN_IMAGE=(its runtime image, which has cuBLAS and NCCL). tests/cli/test_deploy.sh runs the RUN lines.
# SPDX-License-Identifier: Apache-2.0
ARG BUILD_IMAGE=debian:bookworm
ARG RUN_IMAGE=debian:bookworm

FROM ${BUILD_IMAGE} AS build
RUN command -v make || { apt-get update && apt-get install -y --no-install-recommends make; }
WORKDIR /src
COPY . .
RUN make deps deps-net deps-http
RUN make -j"$(nproc)" CUDA_CODE=all all
RUN make install DESTDIR="$PWD/out"

FROM ${RUN_IMAGE}
WORKDIR /work
COPY --from=build /src/tools/deps.sh /usr/local/share/dsc/
COPY --from=build /src/out/ /
RUN sh "$(dirname "$(command -v dsc)")/../share/dsc/deps.sh" libdnnl2 libcjson1 libyaml-0-2 libxxhash0 libutf8proc2 liburing2 libaio1 libgomp1 \
    libgloo0 openmpi-bin openssh-client
RUN train --version && dsc-launch --version && dsc doctor
CMD ["dsc-launch", "--help"]
