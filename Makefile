# make demo | make demo-quantization | make test | make chaos | make lint; each installs what it needs, in this folder alone.
PYTHON ?= python3
BIN := .venv/bin
REAL := vllm or sglang or transformers or llama_cpp
CLOCK := tests/unit/load tests/integration

.PHONY: demo demo-quantization test without-engines with-engines chaos lint install engines compiled model lock clean

install: .venv/installed
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# llama.cpp is compiled on what the tests leave of one core; its own tests are the last, wait for it and show its log
compiled: install
	mkdir -p .engines/llama_cpp
	JOBS=1 nice -n 19 $(BIN)/python scripts/install_engines.py llama_cpp --into .engines/llama_cpp \
	  > .engines/llama_cpp.log 2>&1 &

engines: install
	nice $(BIN)/python scripts/install_engines.py vllm --into .engines/vllm
	nice $(BIN)/python scripts/install_engines.py sglang --into .engines/sglang
	nice $(BIN)/python scripts/install_engines.py transformers --into .engines/transformers
	nice $(BIN)/python scripts/install_engines.py vllm_router --into .engines/vllm_router
	nice $(BIN)/python scripts/install_engines.py sglang_router --into .engines/sglang_router

# the official TGI client, which tests hold the emulator's TGI side against; it needs an older huggingface-hub than ours
.engines/tgi-client/installed: | install
	$(PYTHON) -m venv .engines/tgi-client
	.engines/tgi-client/bin/python -m pip install --quiet --no-compile text-generation==0.7.0
	touch $@

model: install
	$(BIN)/python scripts/make_tiny_model.py .demo/model

demo: install
	$(BIN)/python scripts/demo.py

demo-quantization: install
	$(BIN)/python scripts/demo_quantization.py

# Two halves side by side, each of which waits most of the time: what needs no engine, and engines, installed and then
# tested, to their ends whatever fails. Tests of what the clock says stand first, beside installations that give way.
test: install compiled model
	$(MAKE) --keep-going -j2 without-engines with-engines

without-engines: install model .engines/tgi-client/installed
	failed=0; for part in "$(CLOCK)" "$(CLOCK:%=--ignore %)"; do \
	  $(BIN)/python -m pytest $$part -m "not ($(REAL))" $(PYTEST_ARGS) || failed=1; done; exit $$failed

with-engines: engines model
	failed=0; for part in "($(REAL)) and not llama_cpp" llama_cpp; do \
	  $(BIN)/python -m pytest -m "$$part" $(PYTEST_ARGS) || failed=1; done; exit $$failed

# all 100 kill rounds, and what `make test` leaves out: outages of minutes, several hosts (an hour and more)
chaos: install engines model
	$(BIN)/python -m pytest -m "chaos or long" $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# requirements.lock pins every dependency for development; run after changing pyproject.toml
lock: install
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --extra dev --extra tables --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-options --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .engines .demo
