#!/bin/sh
# SPDX-License-Identifier: MIT
# make parity-llama: files of prediff-convert read and run by llama.cpp. By hand only: the first run builds llama-cpp-python in its
# own virtual environment, build/parity/llama (ten minutes; needs Python, a C++ compiler and cmake). Last line: `N passed, ...`.
cd "$(dirname "$0")/../.." || exit 1
. tests/lib.sh
VENV=build/parity/llama
WANTED=llama-cpp-python==0.3.36
export PYTHONDONTWRITEBYTECODE=1

if [ "$(cat $VENV/done 2> /dev/null)" != $WANTED ]; then
    mkdir -p build/parity
    echo "building $WANTED in $VENV (some ten minutes)"
    if ! { [ -x $VENV/bin/python ] || "${PYTHON:-python3}" -m venv $VENV; } ||
       ! CMAKE_ARGS='-DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF' CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} nice -n 19 \
            $VENV/bin/python -m pip install --quiet --disable-pip-version-check --no-binary llama-cpp-python $WANTED numpy > build/parity/llama.log 2>&1; then
        tail -n 3 build/parity/llama.log
        skip "parity-llama: llama-cpp-python could not be built (see build/parity/llama.log)"
        totals
        exit 0
    fi
    echo $WANTED > $VENV/done
fi
make -s build/prediff build/prediff-convert
check "the probe compiles" $CC -O2 $(cat build/openmp 2> /dev/null) -I. tests/parity/probe.c $LDLIBS -o $OUT/probe || { totals; exit 1; }
run "parity llama" nice $VENV/bin/python tests/parity/llama.py
totals
