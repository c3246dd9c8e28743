PYTHON ?= python3
BIN := .venv/bin
PORT ?= 3000
BENCH ?= peer

.PHONY: demo demo-ray demo-s3 test-fast test test-clients check lint ui docs clients bench lock public-names clean
.DEFAULT_GOAL := demo

# Everything the project needs, from the lock file; nothing is installed outside .venv/. The mode of the last one is a
# folder in a .pth file, where editors and mypy look for types; setuptools' own is a hook of imports.
.venv/.made: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --config-settings editable_mode=compat --editable .
	touch $@

demo: .venv/.made  ## example shards through the whole graph, and a table of what came out
	$(BIN)/python -m tools.demo

demo-ray: .venv/.made  ## the demo on a Ray cluster of two nodes on this machine
	$(BIN)/python -m tools.demo_ray

demo-s3: .venv/.made clients  ## the demo on a real S3 server on this machine
	$(BIN)/python -m tools.demo_s3

# They start hundreds of processes, which would compile our modules again and again where containers forbid to keep that.
test-fast test test-clients: export PYTHONDONTWRITEBYTECODE =

test-fast: .venv/.made  ## the unit tests (mm_assets_tests/tiers.py)
	$(BIN)/python -m pytest --fast -n auto

# File by file, in the order of conftest.py: sorted by number of tests, the few long ones with real daemons would come last.
SPREAD := -n auto --dist loadfile --no-loadscope-reorder

test: .venv/.made $(if $(CLIENTS),clients)  ## all tests but those of the clients; with those, in less time than one after the other: make test CLIENTS=1
	$(BIN)/python -m pytest $(if $(CLIENTS),,-m "not clients") $(SPREAD)

lint: .venv/.made  ## ruff, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test  ## lint and test

ui: .venv/.made  ## the Dagster UI and daemon on http://127.0.0.1:$(PORT)
	eval "$$($(BIN)/python -m tools.demo --exports)" && $(BIN)/mm-assets ui --port $(PORT)

# An environment of its own: pages are made from our sources as text, without the project's own packages.
.venv-docs/.made: requirements-docs.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --no-deps -r requirements-docs.lock
	touch $@

docs: .venv-docs/.made  ## the documentation with the library reference, as pages in build/docs/; a dead link fails
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict

clients:  ## every client the outputs must open in, in an environment of their own (2.8 GB)
	clients/install

test-clients: .venv/.made clients  ## the tests that need those clients, a browser, an S3 server or the package registry
	$(BIN)/python -m pytest -m clients $(SPREAD)

bench: .venv/.made clients  ## speed and memory beside NeMo Curator; another benchmark or size: make bench BENCH="memory --full"
	$(BIN)/python -m benchmarks $(BENCH)

lock: .venv/.made  ## the exact versions for pyproject.toml, the image and requirements-docs.in; what is locked stays while it fits
	$(BIN)/python -m pip install --quiet uv==0.13.8
	$(BIN)/uv pip compile pyproject.toml --extra dev -o requirements.lock --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes
	$(BIN)/uv pip compile pyproject.toml deploy/postgres/build.in --extra dagster --extra postgres --extra s3 --extra gcs --extra azure --extra scores --extra pdf --extra ray --extra k8s -c requirements.lock -o deploy/postgres/requirements.lock --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes
	$(BIN)/uv pip compile requirements-docs.in -o requirements-docs.lock --no-header --no-annotate --no-emit-index-url --no-emit-find-links --generate-hashes

public-names: .venv/.made  ## what `from mm_assets import ...` gives, from the `__all__` of the modules
	$(BIN)/python -m tools.public_names

clean:
	rm -rf .venv .venv-clients .venv-docs .dagster demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache
