#!/bin/sh
# Redoes both shipped test models: redo.sh WORK_FOLDER OUTPUT_FOLDER
# Needs Debian's apt-get and dpkg-deb, a C++ compiler, and the packages of requirements.txt.
set -eu
work=$1
out=$2
cd "$(dirname "$0")"

python corpus.py --work "$work"
python circuit.py --work "$work" --name mha
python train.py --work "$work" --name mha --tokens "${MHA_TOKENS:-14000000}"
python circuit.py --work "$work" --name mha --again --minutes 20 --length 2048 --cue 12 --new-text 0.4
python strengthen.py --work "$work" --name mha
python merge.py --work "$work"
python train.py --work "$work" --name gqa --begin 0.5 --tokens "${GQA_TOKENS:-6000000}"
python circuit.py --work "$work" --name gqa --again --minutes 20 --length 2048 --cue 12 --new-text 0.4
python strengthen.py --work "$work" --name gqa
for name in mha gqa; do
    python evaluate.py --work "$work" --name "$name"
    python export.py --work "$work" --name "$name" --out "$out/triphase-$name" --check
    python card.py --work "$work" --name "$name" --out "$out/triphase-$name"
done
