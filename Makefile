# `make demo` and `make test` are all a new machine needs (Python >= 3.11 with venv, make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

# tflite-runtime lives on 32-bit boards with numpy 1, so its tests have an environment of their own.
TFLITE_VENV := .venv-tflite
TFLITE_STAMP := $(TFLITE_VENV)/.installed

.PHONY: install demo test test-pi emulation lint fix fuzz soak mosquitto chromium environments tflite clean

install: $(STAMP)

$(STAMP): pyproject.toml device/pyproject.toml export/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "quarl-edge needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv module is missing. Run: sudo apt-get install -y python3-venv"; exit 1; }
	@echo "Installing quarl-edge and TensorFlow into $(VENV): about 2 GB, one to three minutes on a good line"
	$(PIP) install -c constraints.txt -e device -e export -e '.[learner,dev]'
	@touch $@

demo: install
	$(BIN)/quarl-edge demo

# Two workers, a file at a time: more would only make tests with deadlines wait for each other.
test: install environments tflite mosquitto chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# An emulated Raspberry Pi: Debian with systemd, aarch64 or (ARCH=armhf) armv7l. Needs root, for its namespaces.
ARCH ?= arm64
test-pi: install mosquitto emulation
	QUARL_BOARD_ARCH=$(ARCH) $(BIN)/python -m pytest -m board tests/board --durations=10

# make never calls sudo.
EMULATION := debootstrap qemu-user-static systemd-container openssh-client iproute2
emulation:
	@{ command -v debootstrap && command -v systemd-nspawn && command -v ssh && command -v ip && \
	  test -e /usr/lib/binfmt.d/qemu-aarch64.conf; } >/dev/null || \
	  { if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -y -q --no-install-recommends $(EMULATION); \
	    else echo "An emulated board needs more packages. Run: sudo apt-get install -y $(EMULATION)"; exit 1; fi; }

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What the extras add, so that their tests are not left out; nothing else needs it.
environments: $(VENV)/.environments

$(VENV)/.environments: device/pyproject.toml constraints.txt | install
	$(PIP) install -q -c constraints.txt -e 'device[box2d,mujoco,dm-control,atari]'
	@touch $@

# Its last wheels are for Python 3.11: with a later Python its tests are left out, and pytest says so.
tflite: $(TFLITE_STAMP)

$(TFLITE_STAMP): device/pyproject.toml constraints-tflite.txt | install
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(PYTHON) -m venv $(TFLITE_VENV) && \
	  $(TFLITE_VENV)/bin/python -m pip --disable-pip-version-check install -q -r constraints-tflite.txt && \
	  $(TFLITE_VENV)/bin/python -m pip --disable-pip-version-check install -q --no-deps -e device && \
	  touch $@; \
	else echo "tflite-runtime has no wheel for this Python; its tests are left out"; fi

# The wire tests run against a real Mosquitto beside the embedded broker. make never calls sudo.
mosquitto:
	@command -v mosquitto >/dev/null || test -x /usr/sbin/mosquitto || \
	  { if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -y -q --no-install-recommends mosquitto; \
	    else echo "The tests need Mosquitto. Run: sudo apt-get install -y mosquitto"; exit 1; fi; }

# The reports are opened in a real browser.
chromium:
	@command -v chromium >/dev/null || \
	  { if [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -y -q --no-install-recommends chromium; \
	    else echo "The tests need Chromium. Run: sudo apt-get install -y chromium"; exit 1; fi; }

clean:
	rm -rf $(VENV) $(TFLITE_VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache

# Half an hour of kills, cuts, full disks and lossy links; fails when a step is not accounted for: make soak SEED=1
SOAK_SECONDS ?= 1800
SEED ?= 0
soak: install mosquitto
	$(BIN)/quarl-edge bench soak --seconds $(SOAK_SECONDS) --seed $(SEED) --out docs/results/soak.json

# Coverage-guided fuzzing of a wire decoder, not part of the tests: make fuzz DECODER=push SECONDS=600
DECODER ?= block
SECONDS ?= 60
fuzz: install
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install -q atheris
	$(BIN)/python tests/fuzz/fuzz_wire.py "$(DECODER)" $(SECONDS)
